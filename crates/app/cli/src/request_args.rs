//! Parsers of request arguments.

use fairmesh_model::{Invalid, ServiceName};

/// Parses a service: tenant/service, or the host by which programs call it, service.tenant.
pub(super) fn service(text: &str) -> Result<ServiceName, Invalid> {
    match text.rsplit_once('.') {
        Some((service, tenant)) if !text.contains('/') => format!("{tenant}/{service}").parse(),
        _ => text.parse(),
    }
}

/// Parses a path.
pub(super) fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        return Ok(text.to_owned());
    }
    Err(format!("a path starts with a slash; write '/{text}'"))
}

/// Parses a header; its name is lowercased.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once([':', '='])
        .ok_or_else(|| format!("'{text}' is not a header; write NAME: VALUE, such as 'x-tier: gold'"))?;
    Ok((name.trim().to_lowercase(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_parsed_from_name_or_host() {
        for text in ["shop/web", "web.shop"] {
            assert_eq!(service(text).unwrap().to_string(), "shop/web");
        }
        assert_eq!(service("v2.web.shop").unwrap().to_string(), "shop/v2.web");
        assert_eq!(service("shop/v2.web").unwrap().to_string(), "shop/v2.web");
        assert!(service("web").is_err() && service(".shop").is_err());
    }
}
