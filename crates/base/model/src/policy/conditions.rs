//! Conditions of authorization rules on what a request brings along: claims of its token, and headers.

use super::authorization::{MAX_TEXT, at_most};
use crate::{Invalid, route::is_token};

/// Upper bound of the conditions of a rule.
const MAX_WHEN: usize = 32;
/// Upper bound of the issuers whose tokens a service accepts.
const MAX_ACCEPTED: usize = 16;
/// Upper bound of the values of a condition, and of the audiences of an issuer.
const MAX_VALUES: usize = 256;
/// Upper bound of the names that lead to a claim.
const MAX_DEPTH: usize = 4;

/// Tokens of end users that a service accepts: JWTs (RFC 7519) of an issuer that the mesh knows, for one of these audiences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedTokens {
    /// The issuer, exactly as tokens have it in `iss`.
    pub issuer: String,
    /// 1 to 256; a token has to name one of them in `aud`.
    pub audiences: Vec<String>,
}

/// A condition on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What is compared.
    pub subject: ConditionSubject,
    /// Whether it must have none of the values, instead of one of them.
    pub excludes: bool,
    /// 1 to 256.
    pub values: Vec<ValueMatch>,
}

/// What a condition compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionSubject {
    /// A claim of the verified token: the names that lead to it, from the outside in; 1 to 4.
    Claim(Vec<String>),
    /// A header, in lower case.
    Header(String),
}

/// A pattern of values: the whole value, its beginning and `*`, or `*` for any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueMatch(pub String);

impl ValueMatch {
    /// Whether a value matches.
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
            // Without an audience, a token that was issued for any other service would do.
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

/// Checks the name of a header. Those that prove who calls are read by their own rules.
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
