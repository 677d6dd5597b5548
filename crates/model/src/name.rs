//! Names: short validated texts, cheap to clone, each with a type of its own so that none is taken for another.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use crate::Invalid;

/// Which characters a kind of name may hold.
#[derive(Clone, Copy)]
enum Alphabet {
    /// Lower-case letters, digits, `-`, `_` and `.`: what stands in a RIB key and in a host name.
    Lower,
    /// Also upper-case letters, `:` and `@`: what other systems hand out as instance ids.
    Wide,
}

impl Alphabet {
    fn holds(self, c: char) -> bool {
        let lower = c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        lower || matches!(self, Self::Wide) && (c.is_ascii_uppercase() || matches!(c, ':' | '@'))
    }

    fn words(self) -> &'static str {
        match self {
            Self::Lower => "lower-case letters, digits, '-', '_' and '.'",
            Self::Wide => "letters, digits, '-', '_', '.', ':' and '@'",
        }
    }
}

fn check(what: &str, text: &str, longest: usize, alphabet: Alphabet) -> Result<(), Invalid> {
    let rule =
        || format!("a {what} has 1 to {longest} {}, and starts with a letter or digit", alphabet.words());
    if text.is_empty() {
        return Err(Invalid::new("", format!("the {what} is empty"), rule()));
    }
    let well_formed = text.len() <= longest
        && text.chars().all(|c| alphabet.holds(c))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if well_formed { Ok(()) } else { Err(Invalid::new("", format!("'{text}' is not a {what}"), rule())) }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $longest:literal, $alphabet:ident $(, but $taken:literal)?) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text when it is well formed; the error says what is allowed.
            pub fn new(text: impl AsRef<str>) -> Result<Self, Invalid> {
                let text = text.as_ref();
                check($what, text, $longest, Alphabet::$alphabet)?;
                $(if text == $taken {
                    let problem = format!("'{text}' is a word of Fairmesh's own and not a {}", $what);
                    return Err(Invalid::new("", problem, "choose another name"));
                })?
                Ok(Self(text.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;
            fn try_from(text: String) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// Who owns services: the first half of `shop/cart`.
    Tenant, "tenant name", 63, Lower
);
name!(
    /// A service's name within its tenant, also used for traffic classes and gates: the second half of `shop/cart`.
    Label, "name", 63, Lower
);
name!(
    /// A region: machines so close together that a call between them costs no thought. Not `ranges`, which in the keys of
    /// a shard map stands where other parts have their region.
    Region, "region name", 63, Lower, but "ranges"
);
name!(
    /// A failure domain within a region.
    Zone, "zone name", 63, Lower
);
name!(
    /// A cluster: what one cluster manager owns.
    Cluster, "cluster name", 63, Lower
);
name!(
    /// A type of hardware, such as `milan-64`.
    HostType, "host type", 63, Lower
);
name!(
    /// The stable identity of one running copy of a service: the same after a move of its address (Uber, imbalance indicator).
    InstanceId, "instance id", 128, Wide
);
name!(
    /// What a replica is for, such as `primary`. Opaque: Fairmesh compares roles and never interprets them (ServiceRouter §3.3).
    Role, "role", 63, Wide
);

/// A service as callers name it: `tenant/service`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName {
    /// Who owns the service.
    pub tenant: Tenant,
    /// The name within the tenant.
    pub service: Label,
}

impl ServiceName {
    /// Parses `tenant/service`.
    pub fn new(text: impl AsRef<str>) -> Result<Self, Invalid> {
        let text = text.as_ref();
        let Some((tenant, service)) = text.split_once('/') else {
            return Err(Invalid::new(
                "",
                format!("'{text}' is not a service name"),
                "write tenant/service, such as shop/cart",
            ));
        };
        Ok(Self { tenant: Tenant::new(tenant)?, service: Label::new(service)? })
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.service)
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl FromStr for ServiceName {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::new(text)
    }
}

impl TryFrom<String> for ServiceName {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::new(text)
    }
}

impl From<ServiceName> for String {
    fn from(name: ServiceName) -> String {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_with_its_tenant() {
        assert_eq!(ServiceName::new("shop/cart").unwrap().to_string(), "shop/cart");
        for wrong in ["cart", "/cart", "shop/", "shop/cart/x", "Shop/cart", "shop/-cart", "shop/ca rt"] {
            let error = ServiceName::new(wrong).unwrap_err();
            assert!(!error.hint.is_empty(), "{wrong} must be refused with a hint");
        }
    }

    #[test]
    fn a_region_is_never_taken_for_the_part_of_a_shard_map_that_all_regions_share() {
        assert!(Region::new("ranges").is_err());
        assert!(Region::new("ranges-1").is_ok() && Zone::new("ranges").is_ok());
    }

    #[test]
    fn a_name_has_a_longest_form() {
        assert!(Tenant::new("a".repeat(63)).is_ok());
        assert!(Tenant::new("a".repeat(64)).is_err());
        assert!(InstanceId::new("Pod-7:8080@eu").is_ok());
    }
}
