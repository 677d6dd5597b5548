//! Maps a host to a service name.

use std::net::{IpAddr, Ipv4Addr};

use fairmesh_calls::ServiceName;
use fairmesh_model::{HostPort, Tenant};

/// Why the host of a request names no service.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The request has no host.
    #[error("the request names no host; send 'Host: service.tenant'")]
    Missing,
    /// The host is malformed, or the request has several hosts.
    #[error(
        "'{0}' is not a host, or a second one; send one name or address, with an optional port up to 65535"
    )]
    Malformed(String),
    /// The host cannot be the name of a service.
    #[error("'{0}' is not a service; send 'Host: service.tenant', as cart.shop for shop/cart")]
    NotAService(String),
    /// The service is placed on other backends of the gateway.
    #[error("{0} is placed on other backends of the gateway")]
    Misdirected(ServiceName),
    /// The table of services is full.
    #[error(
        "the maximum of {max} services is reached, all called recently; raise {option}, or have some of the clients use another one"
    )]
    TooManyServices {
        /// Maximum number of services.
        max: usize,
        /// Name of the option that sets the maximum.
        option: &'static str,
    },
}

/// The service of a host.
pub(crate) fn service_name(host: &str) -> Result<ServiceName, HostError> {
    let no_name = || HostError::NotAService(host.to_owned());
    let name = HostPort::parse(host).ok_or_else(|| HostError::Malformed(host.to_owned()))?.name();
    // An IPv4 address would be a valid name; an IPv6 address in brackets fails below.
    if name.parse::<Ipv4Addr>().is_ok() {
        return Err(no_name());
    }
    let (service, tenant) = name.rsplit_once('.').ok_or_else(no_name)?;
    ServiceName::new(format!("{tenant}/{service}").to_ascii_lowercase()).map_err(|_| no_name())
}

/// Returns the service that a host names for callers of one tenant: for callers of `shop`, both `cart` and
/// `cart.shop` are `shop/cart`. No host names another tenant's service. Only a route reaches such a service, with the
/// consent of both tenants.
pub(crate) fn service_of_tenant(host: &str, tenant: &Tenant) -> Result<ServiceName, HostError> {
    let no_name = || HostError::NotAService(host.to_owned());
    let name = HostPort::parse(host).ok_or_else(|| HostError::Malformed(host.to_owned()))?.name();
    if name.parse::<IpAddr>().is_ok() {
        return Err(no_name());
    }
    let name = name.to_ascii_lowercase();
    let service = name.strip_suffix(tenant.as_str()).and_then(|rest| rest.strip_suffix('.')).unwrap_or(&name);
    ServiceName::new(format!("{tenant}/{service}")).map_err(|_| no_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_host_never_names_service_of_other_tenant() {
        let shop = Tenant::new("shop").unwrap();
        for (host, service) in [
            ("cart", "shop/cart"),
            ("Cart:80", "shop/cart"),
            ("cart.shop.", "shop/cart"),
            ("v2.cart", "shop/v2.cart"),
            ("vault.blue", "shop/vault.blue"),
            ("vault.shop.blue", "shop/vault.shop.blue"),
            ("shop", "shop/shop"),
        ] {
            assert_eq!(service_of_tenant(host, &shop).unwrap().to_string(), service, "{host}");
        }
        for host in ["10.0.0.1:80", "[::1]:80", ".shop", "a/b", "blue/vault", ""] {
            assert!(service_of_tenant(host, &shop).is_err(), "{host}");
        }
    }

    #[test]
    fn host_is_parsed_as_service_dot_tenant() {
        for host in ["cart.shop", "cart.shop:8080", "Cart.Shop.", "cart.shop.:80"] {
            assert_eq!(service_name(host).unwrap().to_string(), "shop/cart", "{host}");
        }
        assert_eq!(service_name("v2.cart.shop").unwrap().to_string(), "shop/v2.cart");
        for host in ["cart", "cart:80", "[::1]:80", "127.0.0.1:80", "10.0.0.1", ".shop", "a,b.shop"] {
            assert!(matches!(service_name(host), Err(HostError::NotAService(_))), "{host}");
        }
        for host in [
            "",
            "a b.shop",
            "cart.shop..",
            "cart.shop:80x",
            "cart.shop:65536",
            "user@cart.shop",
            "cart.shop:8:0",
        ] {
            assert!(matches!(service_name(host), Err(HostError::Malformed(_))), "{host}");
        }
    }
}
