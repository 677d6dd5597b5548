//! The form on the page *why*.

use fairmesh_model::{Invalid, Location, Region, Role, ServiceName, ShardKey, Zone};
use fairmesh_views::HypotheticalCall;
use serde::Deserialize;

/// Maximum number of headers in the form.
const MAX_HEADERS: usize = 64;

/// Fields of the form. An empty field has the default of `fairmesh explain`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Form {
    region: String,
    zone: String,
    method: String,
    path: String,
    host: String,
    key: String,
    role: String,
    client_id: String,
    seed: String,
    /// Headers as `name: value`, one per line.
    headers: String,
}

impl Form {
    /// Returns the hypothetical call that the form describes.
    pub(crate) fn call(self, service: ServiceName) -> Result<HypotheticalCall, Invalid> {
        let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
        let path = or(self.path, "/");
        if !path.starts_with('/') {
            return Err(Invalid::new(
                "path",
                format!("'{path}' does not begin with '/'"),
                "write it as /v1/items",
            ));
        }
        if self.region.is_empty() {
            return Err(Invalid::new("region", "is missing", "choose the region of the caller"));
        }
        let zone = match self.zone.as_str() {
            "" => None,
            zone => Some(Zone::new(zone).map_err(|error| error.within("zone"))?),
        };
        let region = Region::new(self.region).map_err(|error| error.within("region"))?;
        Ok(HypotheticalCall {
            service,
            key: read(&self.key, "key", str::parse::<ShardKey>)?,
            role: match self.role.as_str() {
                "" => None,
                role => Some(Role::new(role).map_err(|error| error.within("role"))?),
            },
            method: or(self.method, "GET").to_uppercase(),
            path,
            headers: headers(&self.headers)?,
            host: self.host,
            location: Location { zone, ..Location::in_region(region) },
            client_id: or(self.client_id, "explain"),
            seed: read(&self.seed, "seed", str::parse::<u64>)?.unwrap_or_default(),
            empty_backends: Vec::new(),
        })
    }
}

fn read<T, E: ToString>(
    text: &str,
    field: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, Invalid> {
    match text {
        "" => Ok(None),
        text => parse(text).map(Some).map_err(|error| {
            Invalid::new(field, format!("'{text}': {}", error.to_string()), "write a number")
        }),
    }
}

fn headers(text: &str) -> Result<Vec<(String, String)>, Invalid> {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.len() > MAX_HEADERS {
        return Err(Invalid::new("headers", format!("has {} lines", lines.len()), "write at most 64"));
    }
    let header = |line: &&str| {
        let invalid =
            || Invalid::new("headers", format!("'{line}' has no colon"), "write 'name: value', one a line");
        let (name, value) = line.split_once(':').ok_or_else(invalid)?;
        Ok((name.trim().to_lowercase(), value.trim().to_owned()))
    };
    lines.iter().map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> ServiceName {
        ServiceName::new("shop/cart").unwrap()
    }

    #[test]
    fn empty_explain_form_has_command_defaults() {
        let form = Form { region: "eu".into(), ..Form::default() };
        let call = form.call(service()).unwrap();
        assert_eq!(
            (call.method.as_str(), call.path.as_str(), call.client_id.as_str()),
            ("GET", "/", "explain")
        );
        assert_eq!((call.seed, call.key, call.headers.len()), (0, None, 0));
    }

    #[test]
    fn invalid_explain_form_error_names_field() {
        let field = |form: Form| form.call(service()).unwrap_err().field;
        let eu = || Form { region: "eu".into(), ..Form::default() };
        assert_eq!(field(Form::default()), "region");
        assert_eq!(field(Form { path: "v2".into(), ..eu() }), "path");
        assert_eq!(field(Form { seed: "x".into(), ..eu() }), "seed");
        assert_eq!(field(Form { headers: "nothing".into(), ..eu() }), "headers");
    }
}
