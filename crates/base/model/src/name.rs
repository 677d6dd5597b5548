//! Names: short validated strings that are cheap to clone. Each kind of name has its own type, so that names cannot
//! be confused.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use crate::Invalid;

/// Characters allowed in a kind of name.
#[derive(Clone, Copy)]
enum Alphabet {
    /// Lower-case letters, digits, `-`, `_` and `.`: valid in RIB keys and host names.
    Lower,
    /// `Lower`, and also upper-case letters, `:` and `@`: valid in instance ids of other systems.
    Wide,
}

impl Alphabet {
    fn contains(self, c: char) -> bool {
        let lower = c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        lower || matches!(self, Self::Wide) && (c.is_ascii_uppercase() || matches!(c, ':' | '@'))
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Lower => "lower-case letters, digits, '-', '_' and '.'",
            Self::Wide => "letters, digits, '-', '_', '.', ':' and '@'",
        }
    }
}

fn check(what: &str, text: &str, longest: usize, alphabet: Alphabet) -> Result<(), Invalid> {
    let rule =
        || format!("a {what} has 1 to {longest} {}, and starts with a letter or digit", alphabet.describe());
    if text.is_empty() {
        return Err(Invalid::new("", format!("the {what} is empty"), rule()));
    }
    let well_formed = text.len() <= longest
        && text.chars().all(|c| alphabet.contains(c))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if well_formed { Ok(()) } else { Err(Invalid::new("", format!("'{text}' is not a {what}"), rule())) }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $longest:literal, $alphabet:ident $(, but $taken:literal)?) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "spec", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "spec", serde(try_from = "String", into = "String"))]
        pub struct $name(Arc<str>);

        impl $name {
            /// Validates a name. The error says which names are allowed.
            pub fn new(text: impl AsRef<str>) -> Result<Self, Invalid> {
                let text = text.as_ref();
                check($what, text, $longest, Alphabet::$alphabet)?;
                $(if text == $taken {
                    let problem = format!("'{text}' is reserved and cannot be a {}", $what);
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
    /// The owner of services: the first part of `shop/cart`. `fairmesh` is reserved for identities of the mesh's own
    /// processes.
    Tenant, "tenant name", 63, Lower, but "fairmesh"
);
name!(
    /// A trust domain: all identities that are verified by the roots of one trust bundle (SPIFFE, §2.1).
    TrustDomain, "trust domain", 127, Lower
);
name!(
    /// The name of a service within its tenant, which is the second part of `shop/cart`. Also the name of a traffic
    /// class or a gate.
    Label, "name", 63, Lower
);
name!(
    /// A region: machines with negligible latency between them. `ranges` is reserved, because keys of shard maps use
    /// it in place of a region.
    Region, "region name", 63, Lower, but "ranges"
);
name!(
    /// A failure domain within a region.
    Zone, "zone name", 63, Lower
);
name!(
    /// A cluster, which has one cluster manager.
    Cluster, "cluster name", 63, Lower
);
name!(
    /// A type of hardware, such as `milan-64`.
    HostType, "host type", 63, Lower
);
name!(
    /// The stable id of a service instance, which stays the same when the address changes (Uber, imbalance
    /// indicator).
    InstanceId, "instance id", 128, Wide
);
name!(
    /// The role of a replica, such as `primary`. Roles are opaque; Fairmesh only compares them (ServiceRouter §3.3).
    Role, "role", 63, Wide
);

/// The full name of a service: `tenant/service`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "spec", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "spec", serde(try_from = "String", into = "String"))]
pub struct ServiceName {
    /// The tenant that owns the service.
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
    fn service_name_requires_tenant() {
        assert_eq!(ServiceName::new("shop/cart").unwrap().to_string(), "shop/cart");
        for wrong in ["cart", "/cart", "shop/", "shop/cart/x", "Shop/cart", "shop/-cart", "shop/ca rt"] {
            let error = ServiceName::new(wrong).unwrap_err();
            assert!(!error.hint.is_empty(), "{wrong} must be rejected with a hint");
        }
    }

    #[test]
    fn reserved_region_name_is_rejected() {
        assert!(Region::new("ranges").is_err());
        assert!(Region::new("ranges-1").is_ok() && Zone::new("ranges").is_ok());
    }

    #[test]
    fn record_name_above_maximum_length_is_rejected() {
        assert!(Tenant::new("a".repeat(63)).is_ok());
        assert!(Tenant::new("a".repeat(64)).is_err());
        assert!(InstanceId::new("Pod-7:8080@eu").is_ok());
    }
}
