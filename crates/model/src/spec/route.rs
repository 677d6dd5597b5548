use serde::{Deserialize, Serialize};

use super::text::{read, read_duration_option, read_option, write_duration};
use crate::{GrpcMatch, HeaderMatch, HostMatch, Invalid, Match, PathMatch, Route, Target, TextMatch};

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteSpec {
    /// What users call it; unique within the policy.
    pub name: String,
    /// Which calls it is for; every call when left out.
    #[serde(default, rename = "match", skip_serializing_if = "MatchSpec::is_any")]
    pub matches: MatchSpec,
    /// Where they go, by weight; the service itself when left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<TargetSpec>,
    /// The traffic class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The whole call, where it differs from the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Whether a repeated call does no harm, whatever its method.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
}

/// Which calls a route is for: all conditions hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MatchSpec {
    /// Any of these hosts, exact or `*.example.org`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathSpec>,
    /// Any of these methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// All of these headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderSpec>,
    /// A gRPC method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcSpec>,
}

/// A path: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathSpec {
    /// Exactly this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// This one or below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// A header: its name and one of the three.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderSpec {
    /// Its name; case does not matter.
    pub name: String,
    /// Exactly this value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// A value that starts so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// `true`: any value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub present: bool,
}

/// A gRPC method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcSpec {
    /// The full service name, such as `shop.v1.Cart`.
    pub service: String,
    /// The method; any when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// One arm of a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TargetSpec {
    /// `tenant/service`.
    pub service: String,
    /// Its share, relative to the other arms.
    pub weight: u32,
}

impl RouteSpec {
    pub(super) fn plan(&self) -> Result<Route, Invalid> {
        let split = self.split.iter().enumerate().map(|(i, target)| {
            let service = read(&format!("split[{i}].service"), &target.service)?;
            Ok(Target { service, weight: target.weight })
        });
        Ok(Route {
            name: read("name", &self.name)?,
            matches: self.matches.plan().map_err(|e| e.within("match"))?,
            split: split.collect::<Result<_, Invalid>>()?,
            class: read_option("class", self.class.as_ref())?,
            timeout: read_duration_option("timeout", self.timeout.as_ref())?,
            idempotent: self.idempotent,
        })
    }

    pub(super) fn of(route: &Route) -> Self {
        let split = route.split.iter();
        Self {
            name: route.name.to_string(),
            matches: MatchSpec::of(&route.matches),
            split: split.map(|t| TargetSpec { service: t.service.to_string(), weight: t.weight }).collect(),
            class: route.class.as_ref().map(ToString::to_string),
            timeout: route.timeout.map(write_duration),
            idempotent: route.idempotent,
        }
    }
}

impl MatchSpec {
    fn is_any(&self) -> bool {
        *self == Self::default()
    }

    fn plan(&self) -> Result<Match, Invalid> {
        let hosts = self.hosts.iter().enumerate();
        let hosts = hosts.map(|(i, host)| read_host(host).map_err(|e| e.within(format!("hosts[{i}]"))));
        let methods = self.methods.iter().enumerate();
        let methods = methods.map(|(i, method)| {
            check_token("method", method).map_err(|e| e.within(format!("methods[{i}]")))?;
            Ok(method.to_ascii_uppercase())
        });
        let headers = self.headers.iter().enumerate();
        let headers = headers.map(|(i, header)| header.plan().map_err(|e| e.within(format!("headers[{i}]"))));
        Ok(Match {
            hosts: hosts.collect::<Result<_, _>>()?,
            path: self.path.as_ref().map(PathSpec::plan).transpose().map_err(|e| e.within("path"))?,
            methods: methods.collect::<Result<_, Invalid>>()?,
            headers: headers.collect::<Result<_, _>>()?,
            grpc: self.grpc.as_ref().map(GrpcSpec::plan).transpose().map_err(|e| e.within("grpc"))?,
        })
    }

    fn of(matches: &Match) -> Self {
        let hosts = matches.hosts.iter().map(|host| match host {
            HostMatch::Exact(name) => name.clone(),
            HostMatch::Suffix(domain) => format!("*{domain}"),
        });
        Self {
            hosts: hosts.collect(),
            path: matches.path.as_ref().map(PathSpec::of),
            methods: matches.methods.clone(),
            headers: matches.headers.iter().map(HeaderSpec::of).collect(),
            grpc: matches
                .grpc
                .as_ref()
                .map(|grpc| GrpcSpec { service: grpc.service.clone(), method: grpc.method.clone() }),
        }
    }
}

fn read_host(text: &str) -> Result<HostMatch, Invalid> {
    let (star, name) = match text.strip_prefix("*.") {
        Some(domain) => (true, domain),
        None => (false, text),
    };
    let well_formed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(well_formed) {
        return Err(Invalid::new(
            "",
            format!("'{text}' is not a host"),
            "write a host name without port, such as cart.example.org or *.example.org",
        ));
    }
    let name = name.to_ascii_lowercase();
    Ok(if star { HostMatch::Suffix(format!(".{name}")) } else { HostMatch::Exact(name) })
}

/// RFC 9110 section 5.6.2: what a method and a header name are made of.
fn check_token(what: &str, text: &str) -> Result<(), Invalid> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if !text.is_empty() && text.chars().all(allowed) {
        return Ok(());
    }
    Err(Invalid::new("", format!("'{text}' is not a {what}"), format!("write a {what} without blanks")))
}

impl PathSpec {
    fn plan(&self) -> Result<PathMatch, Invalid> {
        let rooted = |field: &str, path: &str| match path.starts_with('/') && !path.contains(['?', '#']) {
            true => Ok(()),
            false => Err(Invalid::new(
                field,
                format!("'{path}' is not a path"),
                "start it with '/' and leave the query out, such as /v1/carts",
            )),
        };
        match (&self.exact, &self.prefix) {
            (Some(path), None) => rooted("exact", path).map(|()| PathMatch::Exact(path.clone())),
            (None, Some(path)) => {
                rooted("prefix", path)?;
                Ok(PathMatch::Prefix(path.strip_suffix('/').unwrap_or(path).to_owned()))
            }
            _ => Err(Invalid::new("", "has none or both of 'exact' and 'prefix'", "write one of them")),
        }
    }

    fn of(path: &PathMatch) -> Self {
        match path {
            PathMatch::Exact(path) => Self { exact: Some(path.clone()), prefix: None },
            PathMatch::Prefix(path) if path.is_empty() => Self { exact: None, prefix: Some("/".into()) },
            PathMatch::Prefix(path) => Self { exact: None, prefix: Some(path.clone()) },
        }
    }
}

impl HeaderSpec {
    fn plan(&self) -> Result<HeaderMatch, Invalid> {
        check_token("header name", &self.name).map_err(|e| e.within("name"))?;
        let value = match (&self.exact, &self.prefix, self.present) {
            (Some(text), None, false) => TextMatch::Exact(text.clone()),
            (None, Some(text), false) => TextMatch::Prefix(text.clone()),
            (None, None, true) => TextMatch::Present,
            _ => {
                let problem = "has none or several of 'exact', 'prefix' and 'present'";
                return Err(Invalid::new("", problem, "write one of them, such as present: true"));
            }
        };
        Ok(HeaderMatch { name: self.name.to_ascii_lowercase(), value })
    }

    fn of(header: &HeaderMatch) -> Self {
        let mut spec = Self { name: header.name.clone(), ..Self::default() };
        match &header.value {
            TextMatch::Present => spec.present = true,
            TextMatch::Exact(text) => spec.exact = Some(text.clone()),
            TextMatch::Prefix(text) => spec.prefix = Some(text.clone()),
        }
        spec
    }
}

impl GrpcSpec {
    fn plan(&self) -> Result<GrpcMatch, Invalid> {
        let well_formed = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
        };
        if !well_formed(&self.service) {
            let problem = format!("'{}' is not a gRPC service", self.service);
            return Err(Invalid::new("service", problem, "write the full name, such as shop.v1.Cart"));
        }
        if let Some(method) = self.method.as_deref().filter(|method| !well_formed(method)) {
            let problem = format!("'{method}' is not a gRPC method");
            return Err(Invalid::new("method", problem, "write its name alone, such as GetCart"));
        }
        Ok(GrpcMatch { service: self.service.clone(), method: self.method.clone() })
    }
}
