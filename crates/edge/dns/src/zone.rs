//! The names of the zone.

use std::{fmt, str::FromStr};

use fairmesh_model::{ServiceName, Tenant};
use hickory_proto::rr::Name;

/// A zone whose names are services.
#[derive(Clone, Debug)]
pub struct Zone(Name);

/// Error for a text that is not the name of a zone.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is no zone; write a domain such as mesh or mesh.example.org")]
pub struct InvalidZone(String);

/// The meaning of a name in the zone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ZoneName {
    /// A name outside of the zone.
    Outside,
    /// The zone itself.
    Apex,
    /// The parent name of a tenant's services.
    Tenant(Tenant),
    /// The name of a service: `cart.shop` for shop/cart.
    Service(ServiceName),
    /// A name within the zone that no service can have.
    Invalid,
}

impl Zone {
    pub(crate) fn name(&self) -> &Name {
        &self.0
    }

    /// Classifies a name. Case is ignored (RFC 4343).
    pub(crate) fn find(&self, name: &Name) -> ZoneName {
        if !self.0.zone_of(name) {
            return ZoneName::Outside;
        }
        // `num_labels` does not count a leading `*`.
        let count = name.iter().count() - self.0.iter().count();
        // A label may contain any byte, even a dot; service names contain only these.
        let text = |label: &[u8]| {
            let is_plain = label.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
            is_plain.then(|| String::from_utf8_lossy(label).to_ascii_lowercase())
        };
        let Some(labels) = name.iter().take(count).map(text).collect::<Option<Vec<_>>>() else {
            return ZoneName::Invalid;
        };
        match labels.split_last() {
            None => ZoneName::Apex,
            Some((tenant, [])) => Tenant::new(tenant.as_str()).map_or(ZoneName::Invalid, ZoneName::Tenant),
            Some((tenant, service)) => {
                let name = format!("{tenant}/{}", service.join("."));
                ServiceName::new(name).map_or(ZoneName::Invalid, ZoneName::Service)
            }
        }
    }
}

impl FromStr for Zone {
    type Err = InvalidZone;

    fn from_str(text: &str) -> Result<Self, InvalidZone> {
        let invalid = || InvalidZone(text.to_owned());
        let mut name = Name::from_ascii(text).map_err(|_| invalid())?;
        name.set_fqdn(true);
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        match is_plain && name.num_labels() > 0 {
            true => Ok(Self(name.to_lowercase())),
            false => Err(invalid()),
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.to_string().trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_names_beneath_zone_are_services_and_tenants() {
        let zone: Zone = "Mesh.".parse().unwrap();
        assert_eq!(zone.to_string(), "mesh");
        let found = |name: &str| zone.find(&Name::from_ascii(name).unwrap());
        let service = |name: &str| ZoneName::Service(ServiceName::new(name).unwrap());
        for (name, expected) in [
            ("cart.shop.mesh.", service("shop/cart")),
            ("CART.Shop.MESH.", service("shop/cart")),
            ("v2.cart.shop.mesh.", service("shop/v2.cart")),
            ("shop.mesh.", ZoneName::Tenant(Tenant::new("shop").unwrap())),
            ("mesh.", ZoneName::Apex),
            ("cart.shop.", ZoneName::Outside),
            ("cart.shop.notmesh.", ZoneName::Outside),
            (".", ZoneName::Outside),
            ("*.shop.mesh.", ZoneName::Invalid),
            ("*.mesh.", ZoneName::Invalid),
            ("a\\.b.shop.mesh.", ZoneName::Invalid),
        ] {
            assert_eq!(found(name), expected, "{name}");
        }
    }

    #[test]
    fn dns_zone_without_labels_or_with_invalid_labels_is_refused() {
        for wrong in ["", ".", "a b", "*.mesh", "me/sh"] {
            assert!(wrong.parse::<Zone>().is_err(), "{wrong}");
        }
        assert_eq!("mesh.example.org".parse::<Zone>().unwrap().to_string(), "mesh.example.org");
    }
}
