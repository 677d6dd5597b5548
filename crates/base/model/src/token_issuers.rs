//! The record of the issuers whose tokens of end users servers verify.

use crate::Invalid;

/// Upper bound of a token, in bytes.
pub const MAX_TOKEN: usize = 8 * 1024;
/// Upper bound of issuers.
const MAX_ISSUERS: usize = 16;
/// Upper bound of the keys of an issuer as a JWKS, in bytes.
pub const MAX_ISSUER_KEYS: usize = 32 * 1024;
/// Upper bound of an issuer and of a URL, in bytes.
const MAX_URL: usize = 1024;

/// Issuers of tokens, for all services. Each service names those whose tokens it accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenIssuers {
    /// At most 16, each once.
    pub issuers: Vec<TokenIssuer>,
}

/// An issuer of tokens, such as an identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIssuer {
    /// Its name, exactly as tokens have it in `iss`.
    pub issuer: String,
    /// Where the control plane fetches its keys again; `None` if they were given.
    pub url: Option<String>,
    /// Its public keys, as a JWKS (RFC 7517, 5) with what verification needs; at most [`MAX_ISSUER_KEYS`].
    pub keys: Vec<u8>,
}

impl TokenIssuers {
    /// Checks the bounds.
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
