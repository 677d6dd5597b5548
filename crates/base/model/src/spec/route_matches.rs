use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{
    ClientMatch, GrpcMatch, HeaderMatch, HostMatch, Invalid, Match, PathMatch, Pattern, QueryMatch, Template,
    TextMatch, route::is_token,
};

/// Match conditions of a route. All must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MatchSpec {
    /// Client ids or patterns such as `batch-*`, one of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<String>,
    /// Hosts, exact or `*.example.org`, one of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The path condition.
    #[serde(default, deserialize_with = "path_condition", skip_serializing_if = "Option::is_none")]
    pub path: Option<PathSpec>,
    /// Methods, one of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Header conditions, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<TextSpec>,
    /// Query parameter conditions, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<TextSpec>,
    /// The gRPC method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcSpec>,
}

/// A path condition. Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathSpec {
    /// Exactly this path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// This path or any path below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// A path with variable segments, such as `/users/{id}/orders`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// A regular expression that must match the whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
}

/// A condition on a header or query parameter: its name and exactly one other field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TextSpec {
    /// The name, which is case-insensitive for headers.
    pub name: String,
    /// Exactly this value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// A value with this prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// A regular expression that must match the whole value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// `true` if any value matches, `false` if the header or parameter must be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// A gRPC method condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcSpec {
    /// The full service name, such as `shop.v1.Cart`.
    pub service: String,
    /// The method; any method by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// Reads a path condition. A bare path is refused with a hint.
fn path_condition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathSpec>, D::Error> {
    struct PathVisitor;

    impl<'de> de::Visitor<'de> for PathVisitor {
        type Value = Option<PathSpec>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("{exact: /a}, {prefix: /a}, {template: '/a/{id}'} or {regex: '/[a-z]+'}")
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Err(E::custom(format!(
                "'{text}' is no condition on a path; write {{exact: {text}}} for this path alone, or {{prefix: {text}}} for \
                 this path and those below it"
            )))
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            PathSpec::deserialize(de::value::MapAccessDeserializer::new(map)).map(Some)
        }
    }
    deserializer.deserialize_any(PathVisitor)
}

impl MatchSpec {
    pub(super) fn is_any(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn validate(&self) -> Result<Match, Invalid> {
        let clients = self.clients.iter().enumerate();
        let clients =
            clients.map(|(i, text)| ClientMatch::new(text).map_err(|e| e.within(format!("clients[{i}]"))));
        let hosts = self.hosts.iter().enumerate();
        let hosts = hosts.map(|(i, host)| read_host(host).map_err(|e| e.within(format!("hosts[{i}]"))));
        let methods = self.methods.iter().enumerate();
        let methods = methods.map(|(i, method)| {
            check_token("method", method).map_err(|e| e.within(format!("methods[{i}]")))?;
            Ok(method.to_ascii_uppercase())
        });
        let headers = self.headers.iter().enumerate();
        let headers =
            headers.map(|(i, header)| header.header().map_err(|e| e.within(format!("headers[{i}]"))));
        let query = self.query.iter().enumerate();
        let query =
            query.map(|(i, parameter)| parameter.query().map_err(|e| e.within(format!("query[{i}]"))));
        Ok(Match {
            clients: clients.collect::<Result<_, _>>()?,
            hosts: hosts.collect::<Result<_, _>>()?,
            path: self.path.as_ref().map(PathSpec::validate).transpose().map_err(|e| e.within("path"))?,
            methods: methods.collect::<Result<_, Invalid>>()?,
            headers: headers.collect::<Result<_, _>>()?,
            query: query.collect::<Result<_, _>>()?,
            grpc: self.grpc.as_ref().map(GrpcSpec::validate).transpose().map_err(|e| e.within("grpc"))?,
        })
    }

    pub(super) fn of(matches: &Match) -> Self {
        let hosts = matches.hosts.iter().map(|host| match host {
            HostMatch::Exact(name) => name.clone(),
            HostMatch::Suffix(domain) => format!("*{domain}"),
        });
        Self {
            clients: matches.clients.iter().map(|client| client.as_str().to_owned()).collect(),
            hosts: hosts.collect(),
            path: matches.path.as_ref().map(PathSpec::of),
            methods: matches.methods.clone(),
            headers: matches.headers.iter().map(|header| TextSpec::of(&header.name, &header.value)).collect(),
            query: matches.query.iter().map(|query| TextSpec::of(&query.name, &query.value)).collect(),
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
    // Hosts are compared without a trailing dot.
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    Ok(if star { HostMatch::Suffix(format!(".{name}")) } else { HostMatch::Exact(name) })
}

fn check_token(what: &str, text: &str) -> Result<(), Invalid> {
    match is_token(text) {
        true => Ok(()),
        false => Err(Invalid::new(
            "",
            format!("'{text}' is not a {what}"),
            format!("write a {what} without blanks"),
        )),
    }
}

impl PathSpec {
    pub(super) fn validate(&self) -> Result<PathMatch, Invalid> {
        let rooted = |field: &str, path: &str| match path.starts_with('/') && !path.contains(['?', '#']) {
            true => Ok(()),
            false => Err(Invalid::new(
                field,
                format!("'{path}' is not a path"),
                "start it with '/' and leave the query out, such as /v1/carts",
            )),
        };
        match (&self.exact, &self.prefix, &self.template, &self.regex) {
            (Some(path), None, None, None) => rooted("exact", path).map(|()| PathMatch::Exact(path.clone())),
            (None, Some(path), None, None) => {
                rooted("prefix", path)?;
                Ok(PathMatch::Prefix(path.strip_suffix('/').unwrap_or(path).to_owned()))
            }
            (None, None, Some(text), None) => {
                Template::new(text).map(PathMatch::Template).map_err(|e| e.within("template"))
            }
            (None, None, None, Some(text)) => {
                Pattern::new(text).map(PathMatch::Regex).map_err(|e| e.within("regex"))
            }
            _ => {
                let problem = "needs exactly one of 'exact', 'prefix', 'template' and 'regex'";
                Err(Invalid::new("", problem, "write one of them"))
            }
        }
    }

    pub(super) fn of(path: &PathMatch) -> Self {
        let mut spec = Self::default();
        match path {
            PathMatch::Exact(path) => spec.exact = Some(path.clone()),
            PathMatch::Prefix(path) if path.is_empty() => spec.prefix = Some("/".into()),
            PathMatch::Prefix(path) => spec.prefix = Some(path.clone()),
            PathMatch::Template(template) => spec.template = Some(template.to_string()),
            PathMatch::Regex(pattern) => spec.regex = Some(pattern.as_str().to_owned()),
        }
        spec
    }
}

impl TextSpec {
    fn header(&self) -> Result<HeaderMatch, Invalid> {
        check_token("header name", &self.name).map_err(|e| e.within("name"))?;
        Ok(HeaderMatch { name: self.name.to_ascii_lowercase(), value: self.value()? })
    }

    fn query(&self) -> Result<QueryMatch, Invalid> {
        if self.name.is_empty() {
            return Err(Invalid::new(
                "name",
                "the name is empty",
                "write the parameter's name, such as page",
            ));
        }
        Ok(QueryMatch { name: self.name.clone(), value: self.value()? })
    }

    fn value(&self) -> Result<TextMatch, Invalid> {
        match (&self.exact, &self.prefix, &self.regex, self.present) {
            (Some(text), None, None, None) => Ok(TextMatch::Exact(text.clone())),
            (None, Some(text), None, None) => Ok(TextMatch::Prefix(text.clone())),
            (None, None, Some(text), None) => {
                Pattern::new(text.as_str()).map(TextMatch::Regex).map_err(|e| e.within("regex"))
            }
            (None, None, None, Some(true)) => Ok(TextMatch::Present),
            (None, None, None, Some(false)) => Ok(TextMatch::Absent),
            _ => {
                let problem = "needs exactly one of 'exact', 'prefix', 'regex' and 'present'";
                Err(Invalid::new("", problem, "write one of them, such as present: true"))
            }
        }
    }

    fn of(name: &str, value: &TextMatch) -> Self {
        let mut spec = Self { name: name.to_owned(), ..Self::default() };
        match value {
            TextMatch::Present => spec.present = Some(true),
            TextMatch::Absent => spec.present = Some(false),
            TextMatch::Exact(text) => spec.exact = Some(text.clone()),
            TextMatch::Prefix(text) => spec.prefix = Some(text.clone()),
            TextMatch::Regex(pattern) => spec.regex = Some(pattern.as_str().to_owned()),
        }
        spec
    }
}

impl GrpcSpec {
    fn validate(&self) -> Result<GrpcMatch, Invalid> {
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
