use std::{path::PathBuf, str::FromStr};

use fairmesh_model::{Invalid, Label, SpiffeId};

/// A key and its file, written as `NAME=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    /// Name by which callers request the key.
    pub name: Label,
    /// The private key, in PEM.
    pub path: PathBuf,
}

/// A caller that may use a key to sign, written as `NAME=SPIFFE_ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedCaller {
    /// Name of the key.
    pub key: Label,
    /// Identity of the caller.
    pub caller: SpiffeId,
}

fn split<'a>(text: &'a str, hint: &str) -> Result<(Label, &'a str), Invalid> {
    let (name, rest) = text
        .split_once('=')
        .filter(|(_, rest)| !rest.is_empty())
        .ok_or_else(|| Invalid::new("", format!("'{text}' has no name and value"), hint))?;
    Ok((Label::new(name)?, rest))
}

impl FromStr for KeyFile {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (name, path) = split(text, "write NAME=FILE, such as edge=/run/secrets/edge.key")?;
        Ok(Self { name, path: path.into() })
    }
}

impl FromStr for AllowedCaller {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let hint = "write NAME=SPIFFE_ID, such as edge=spiffe://prod/fairmesh/proxy/web-1.proxy";
        let (key, caller) = split(text, hint)?;
        Ok(Self { key, caller: caller.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_server_key_and_caller_arguments_are_parsed() {
        let key: KeyFile = "edge=/keys/a=b.pem".parse().unwrap();
        assert_eq!((key.name.as_str(), key.path.to_str()), ("edge", Some("/keys/a=b.pem")));
        let allowed: AllowedCaller = "edge=spiffe://prod/shop/cart".parse().unwrap();
        assert_eq!(allowed.caller.to_string(), "spiffe://prod/shop/cart");
        for wrong in ["edge", "edge=", "=x", "a b=x"] {
            assert!(wrong.parse::<KeyFile>().is_err(), "{wrong}");
        }
        for wrong in ["edge=shop/cart", "edge=spiffe://prod/*", "edge=*"] {
            assert!(wrong.parse::<AllowedCaller>().is_err(), "{wrong}");
        }
    }
}
