//! The gateway's certificate.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate::file::gateway::Certificate;
use tokio_rustls::TlsAcceptor;

/// Why there is no TLS.
#[derive(Debug)]
pub struct TlsError {
    file: String,
    why: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tls: {} cannot be used: {}", self.file, self.why)
    }
}

impl std::error::Error for TlsError {}

/// Reads a certificate and its key.
pub(crate) fn acceptor(files: &Certificate) -> Result<TlsAcceptor, TlsError> {
    let wrong = |file: &str, why: String| TlsError { file: file.to_owned(), why };
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(&files.certificate, told(&error)))?;
    if chain.is_empty() {
        return Err(wrong(&files.certificate, "there is no certificate in it".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, told(&error)))?;
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
