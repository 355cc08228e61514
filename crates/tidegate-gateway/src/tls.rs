//! Loads the TLS certificate and key.

use std::fmt;
use std::sync::Arc;

use crate::settings::CertificateFiles;
use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Each file that is not usable, with the reason.
#[derive(Debug)]
pub struct TlsError {
    problems: Vec<(String, String)>,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (file, why)) in self.problems.iter().enumerate() {
            write!(f, "{}{file} cannot be used: {why}", if place == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for TlsError {}

/// Loads a certificate and its key.
pub(crate) fn acceptor(files: &CertificateFiles) -> Result<TlsAcceptor, TlsError> {
    let error_for = |file: &str, why: String| TlsError { problems: vec![(file.to_owned(), why)] };
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| error_for(&files.certificate, describe_pem_error(&error)));
    let chain = chain.and_then(|chain| match chain.len() {
        0 => Err(error_for(&files.certificate, "the file contains no certificate".to_owned())),
        _ => Ok(chain),
    });
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| error_for(&files.key, describe_pem_error(&error)));
    // Report problems of both files at once.
    let (chain, key) = match (chain, key) {
        (Ok(chain), Ok(key)) => (chain, key),
        (Err(mut chain), Err(key)) => {
            chain.problems.extend(key.problems);
            return Err(chain);
        }
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error_for(&files.certificate, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| error_for(&files.key, format!("the key does not match the certificate: {error}")))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Checks that the files are usable.
pub fn check_certificate(files: &CertificateFiles) -> Result<(), TlsError> {
    acceptor(files).map(drop)
}

fn describe_pem_error(error: &PemError) -> String {
    match error {
        PemError::NoItemsFound => "the file contains no such item".to_owned(),
        PemError::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_missing_files_are_reported() {
        let files =
            CertificateFiles { certificate: "/nowhere/chain.pem".into(), key: "/nowhere/key.pem".into() };
        let message = check_certificate(&files).expect_err("nothing is there").to_string();
        let problems: Vec<&str> = message.split("; ").collect();
        assert_eq!(problems.len(), 2, "{message}");
        assert!(problems[0].starts_with("/nowhere/chain.pem cannot be used: "), "{message}");
        assert!(problems[1].starts_with("/nowhere/key.pem cannot be used: "), "{message}");
    }
}
