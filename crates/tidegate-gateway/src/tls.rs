//! The gateway's certificate.

use std::fmt;
use std::sync::Arc;

use crate::settings::Certificate;
use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Why there is no TLS: each file that cannot be used, and why not.
#[derive(Debug)]
pub struct TlsError {
    flaws: Vec<(String, String)>,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (file, why)) in self.flaws.iter().enumerate() {
            write!(f, "{}{file} cannot be used: {why}", if place == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for TlsError {}

/// Reads a certificate and its key.
pub(crate) fn acceptor(files: &Certificate) -> Result<TlsAcceptor, TlsError> {
    let wrong = |file: &str, why: String| TlsError { flaws: vec![(file.to_owned(), why)] };
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(&files.certificate, told(&error)));
    let chain = chain.and_then(|chain| match chain.len() {
        0 => Err(wrong(&files.certificate, "there is no certificate in it".to_owned())),
        _ => Ok(chain),
    });
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, told(&error)));
    // Whoever has two things to mend hears of both at once.
    let (chain, key) = match (chain, key) {
        (Ok(chain), Ok(key)) => (chain, key),
        (Err(mut chain), Err(key)) => {
            chain.flaws.extend(key.flaws);
            return Err(chain);
        }
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&files.certificate, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| wrong(&files.key, format!("it does not fit the certificate: {error}")))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Whether a gateway could use these files now.
pub fn check_certificate(files: &Certificate) -> Result<(), TlsError> {
    acceptor(files).map(drop)
}

fn told(error: &PemError) -> String {
    match error {
        PemError::NoItemsFound => "nothing of the kind is in it".to_owned(),
        PemError::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_told_if_both_are_missing() {
        let files = Certificate { certificate: "/nowhere/chain.pem".into(), key: "/nowhere/key.pem".into() };
        let told = check_certificate(&files).expect_err("nothing is there").to_string();
        let of_each: Vec<&str> = told.split("; ").collect();
        assert_eq!(of_each.len(), 2, "{told}");
        assert!(of_each[0].starts_with("/nowhere/chain.pem cannot be used: "), "{told}");
        assert!(of_each[1].starts_with("/nowhere/key.pem cannot be used: "), "{told}");
    }
}
