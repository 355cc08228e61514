//! TLS configuration of database connections.
//!
//! As in libpq, `prefer` and `require` encrypt without verifying the server. `verify-full`, or a file of trusted certificates,
//! verifies the certificate and the host name.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::url::{InvalidUrl, TlsMode};

/// Creates the TLS connector.
pub(crate) fn connector(tls: &TlsMode) -> Result<MakeRustlsConnect, InvalidUrl> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| InvalidUrl(format!("TLS is not available: {error}")))?;
    let config = match tls {
        TlsMode::Off | TlsMode::Unverified => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
            .with_no_client_auth(),
        TlsMode::Verified(roots) => {
            builder.with_root_certificates(trusted_roots(roots.as_deref())?).with_no_client_auth()
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn trusted_roots(file: Option<&std::path::Path>) -> Result<RootCertStore, InvalidUrl> {
    let mut roots = RootCertStore::empty();
    match file {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(file) => {
            let unreadable = |error: &dyn std::fmt::Display| {
                InvalidUrl(format!("sslrootcert {} cannot be read: {error}", file.display()))
            };
            let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(&error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unreadable(&error))?;
                roots.add(certificate).map_err(|error| unreadable(&error))?;
            }
        }
    }
    if roots.is_empty() {
        return Err(InvalidUrl(
            "the system has no trusted certificates; name a file with sslrootcert".to_owned(),
        ));
    }
    Ok(roots)
}

/// Accepts any certificate whose key the server holds.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
