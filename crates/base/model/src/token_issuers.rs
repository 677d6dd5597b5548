//! The record of the issuers whose end user tokens are verified by servers.

use crate::Invalid;

/// Maximum length of a token, in bytes.
pub const MAX_TOKEN: usize = 8 * 1024;
/// Maximum number of issuers.
const MAX_ISSUERS: usize = 16;
/// Maximum size of an issuer's keys as a JWKS, in bytes.
pub const MAX_ISSUER_KEYS: usize = 32 * 1024;
/// Maximum length of an issuer's name and of a URL, in bytes.
const MAX_URL: usize = 1024;

/// Issuers of tokens, known to all services. Each service lists the issuers whose tokens it accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenIssuers {
    /// At most 16 issuers, without duplicates.
    pub issuers: Vec<TokenIssuer>,
}

/// An issuer of tokens, such as an identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIssuer {
    /// The issuer's name, exactly as in the `iss` claim.
    pub issuer: String,
    /// The URL from which the control plane refreshes the keys; `None` if the keys were given directly.
    pub url: Option<String>,
    /// The public keys, as a JWKS (RFC 7517, 5) reduced to what verification needs; at most [`MAX_ISSUER_KEYS`]
    /// bytes.
    pub keys: Vec<u8>,
}

impl TokenIssuers {
    /// Checks the limits.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.issuers.len() > MAX_ISSUERS {
            let problem = format!("has {} issuers", self.issuers.len());
            return Err(Invalid::new("issuers", problem, format!("keep at most {MAX_ISSUERS}")));
        }
        for (i, one) in self.issuers.iter().enumerate() {
            let invalid =
                |problem: String, hint: &str| Err(Invalid::new(format!("issuers[{i}]"), problem, hint));
            if self.issuers[..i].iter().any(|other| other.issuer == one.issuer) {
                return invalid(format!("'{}' is there twice", one.issuer), "give each issuer once");
            }
            let texts = [Some(&one.issuer), one.url.as_ref()];
            if let Some(text) = texts.into_iter().flatten().find(|text| !(1..=MAX_URL).contains(&text.len()))
            {
                return invalid(format!("a name or a URL has {} bytes", text.len()), "give 1 to 1024");
            }
            if one.keys.is_empty() || one.keys.len() > MAX_ISSUER_KEYS {
                return invalid(
                    format!("the keys have {} bytes", one.keys.len()),
                    "give a JWKS of 1 to 32768",
                );
            }
        }
        Ok(())
    }
}
