//! Conditions of authorization rules on properties of the request: claims of its token, and headers.

use super::authorization::{MAX_TEXT, at_most};
use crate::{Invalid, route::is_token};

/// Maximum number of conditions of a rule.
const MAX_WHEN: usize = 32;
/// Maximum number of issuers whose tokens a service accepts.
const MAX_ACCEPTED: usize = 16;
/// Maximum number of values of a condition, and of audiences of an issuer.
const MAX_VALUES: usize = 256;
/// Maximum number of nested names in the path of a claim.
const MAX_DEPTH: usize = 4;

/// End user tokens that a service accepts: JWTs (RFC 7519) from one issuer, which the mesh must know, for one of
/// these audiences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedTokens {
    /// The issuer, exactly as in the `iss` claim.
    pub issuer: String,
    /// 1 to 256 audiences. A token must name at least one in its `aud` claim.
    pub audiences: Vec<String>,
}

/// A condition on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The claim or header that is compared.
    pub subject: ConditionSubject,
    /// Whether the condition is inverted: the subject must match no value, instead of at least one.
    pub excludes: bool,
    /// 1 to 256 patterns.
    pub values: Vec<ValueMatch>,
}

/// What a condition compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionSubject {
    /// A claim of the verified token, as the path of nested names from the outermost; 1 to 4 names.
    Claim(Vec<String>),
    /// A header name, in lower case.
    Header(String),
}

/// A pattern of values: a whole value, a prefix followed by `*`, or `*` for any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueMatch(pub String);

impl ValueMatch {
    /// Whether `value` matches the pattern.
    pub fn matches(&self, value: &[u8]) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => value.starts_with(start.as_bytes()),
            None => value == self.0.as_bytes(),
        }
    }
}

impl AcceptedTokens {
    pub(super) fn validate_all(all: &[Self]) -> Result<(), Invalid> {
        at_most("tokens", all.len(), MAX_ACCEPTED)?;
        for (i, one) in all.iter().enumerate() {
            let at = |e: Invalid| e.within(format!("tokens[{i}]"));
            check_text("issuer", &one.issuer).map_err(at)?;
            if all[..i].iter().any(|other| other.issuer == one.issuer) {
                let problem = format!("'{}' is there twice", one.issuer);
                return Err(at(Invalid::new("issuer", problem, "give each issuer once, with all audiences")));
            }
            // Without audiences, tokens issued for any other service would be accepted.
            check_texts("audiences", &one.audiences).map_err(at)?;
        }
        Ok(())
    }
}

impl Condition {
    pub(super) fn validate_all(all: &[Self]) -> Result<(), Invalid> {
        at_most("when", all.len(), MAX_WHEN)?;
        let one = |(i, one): (usize, &Self)| one.validate().map_err(|e| e.within(format!("when[{i}]")));
        all.iter().enumerate().try_for_each(one)
    }

    fn validate(&self) -> Result<(), Invalid> {
        match &self.subject {
            ConditionSubject::Claim(names) => {
                at_most("claim", names.len(), MAX_DEPTH)?;
                check_texts("claim", names)?;
            }
            ConditionSubject::Header(name) => check_header(name)?,
        }
        let values: Vec<_> = self.values.iter().map(|value| value.0.as_str()).collect();
        let field = if self.excludes { "notValues" } else { "values" };
        check_texts(field, &values)
    }
}

/// Checks a header name. Headers that prove the caller's identity are refused, since they have their own rules.
fn check_header(name: &str) -> Result<(), Invalid> {
    let invalid =
        |problem: &str, hint: &str| Err(Invalid::new("header", format!("'{name}' {problem}"), hint));
    if !is_token(name) || name.len() > MAX_TEXT || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return invalid("is not a header name", "write it in lower case, without blanks");
    }
    match name {
        "authorization" => invalid("has a secret", "write a condition on a claim of the token"),
        name if name.starts_with("x-fairmesh-") => invalid("is of the mesh itself", "name callers in 'from'"),
        _ => Ok(()),
    }
}

fn check_texts<T: AsRef<str>>(field: &str, texts: &[T]) -> Result<(), Invalid> {
    if texts.is_empty() {
        return Err(Invalid::new(field, "is empty", "give at least one"));
    }
    at_most(field, texts.len(), MAX_VALUES)?;
    let check =
        |(i, text): (usize, &T)| check_text("", text.as_ref()).map_err(|e| e.within(format!("{field}[{i}]")));
    texts.iter().enumerate().try_for_each(check)
}

fn check_text(field: &str, text: &str) -> Result<(), Invalid> {
    match (1..=MAX_TEXT).contains(&text.len()) && !text.contains(char::is_control) {
        true => Ok(()),
        false => {
            let problem = format!("has {} bytes, or control characters", text.len());
            Err(Invalid::new(field, problem, format!("give 1 to {MAX_TEXT} bytes of text")))
        }
    }
}
