//! Private keys in PKCS #8 format: their types, and signing with them.

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
        Ed25519KeyPair, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
    },
};

/// The type of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyType {
    EcdsaP256,
    EcdsaP384,
    Ed25519,
    Rsa,
}

impl KeyType {
    const ALL: [Self; 4] = [Self::EcdsaP256, Self::EcdsaP384, Self::Ed25519, Self::Rsa];

    /// Returns the type of the key in a document; `None` if the document has no supported key.
    pub(crate) fn of(pkcs8: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|of| match of {
            Self::EcdsaP256 => ecdsa(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8).is_some(),
            Self::EcdsaP384 => ecdsa(&ECDSA_P384_SHA384_ASN1_SIGNING, pkcs8).is_some(),
            Self::Ed25519 => Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).is_ok(),
            Self::Rsa => RsaKeyPair::from_pkcs8(pkcs8).is_ok(),
        })
    }

    /// Whether a key of this type can sign with a TLS 1.3 signature scheme.
    pub(crate) fn has_scheme(self, scheme: u32) -> bool {
        match self {
            Self::EcdsaP256 => scheme == 0x0403,
            Self::EcdsaP384 => scheme == 0x0503,
            Self::Ed25519 => scheme == 0x0807,
            Self::Rsa => pss(scheme).is_some(),
        }
    }

    /// Signs with the key in the document. The library zeroises values derived from the key when it frees them.
    pub(crate) fn sign(self, pkcs8: &[u8], scheme: u32, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Self::EcdsaP256 | Self::EcdsaP384 => {
                let algorithm = match self {
                    Self::EcdsaP384 => &ECDSA_P384_SHA384_ASN1_SIGNING,
                    _ => &ECDSA_P256_SHA256_ASN1_SIGNING,
                };
                let signature = ecdsa(algorithm, pkcs8)?.sign(&random, message).ok()?;
                Some(signature.as_ref().to_vec())
            }
            Self::Ed25519 => {
                let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).ok()?;
                Some(key.try_sign(message).ok()?.as_ref().to_vec())
            }
            Self::Rsa => {
                let key = RsaKeyPair::from_pkcs8(pkcs8).ok()?;
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(pss(scheme)?, &random, message, &mut signature).ok()?;
                Some(signature)
            }
        }
    }
}

fn ecdsa(algorithm: &'static EcdsaSigningAlgorithm, pkcs8: &[u8]) -> Option<EcdsaKeyPair> {
    EcdsaKeyPair::from_pkcs8(algorithm, pkcs8).ok()
}

fn pss(scheme: u32) -> Option<&'static dyn RsaEncoding> {
    match scheme {
        0x0804 => Some(&RSA_PSS_SHA256),
        0x0805 => Some(&RSA_PSS_SHA384),
        0x0806 => Some(&RSA_PSS_SHA512),
        _ => None,
    }
}
