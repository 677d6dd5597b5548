//! Path templates, and rewrites of paths.

use std::fmt;

use crate::Invalid;

/// A path with variable segments, such as `/users/{id}/orders`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Segment>);

/// A segment between two `/` of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A literal segment.
    Literal(String),
    /// Any segment that is not empty. The name is only for readers.
    Variable(String),
}

impl Template {
    /// Parses a template such as `/users/{id}/orders`.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        let refused = |problem: String| {
            Invalid::new(
                "",
                problem,
                "start it with '/' and let variables be whole segments, such as /users/{id}/orders",
            )
        };
        check_path(text)?;
        let segments = text.split('/').skip(1).map(|segment| match segment.strip_prefix('{') {
            Some(open) => match open.strip_suffix('}') {
                Some(name)
                    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') =>
                {
                    Ok(Segment::Variable(name.to_owned()))
                }
                _ => Err(refused(format!("'{segment}' is not a variable"))),
            },
            None if segment.contains(['{', '}', '*']) => {
                Err(refused(format!("'{segment}' has a variable in a part of the segment")))
            }
            None => Ok(Segment::Literal(segment.to_owned())),
        });
        let segments = segments.collect::<Result<Vec<_>, _>>()?;
        match segments.iter().any(|segment| matches!(segment, Segment::Variable(_))) {
            true => Ok(Self(segments)),
            false => Err(Invalid::new("", format!("'{text}' has no variable"), "write it as 'exact'")),
        }
    }

    /// The segments, at least one of which is variable.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether `path` matches the template.
    pub fn matches(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else { return false };
        let mut parts = path.split('/');
        let fits = |segment: &Segment| match (segment, parts.next()) {
            (Segment::Literal(text), Some(part)) => text == part,
            (Segment::Variable(_), Some(part)) => !part.is_empty(),
            (_, None) => false,
        };
        self.0.iter().all(fits) && parts.next().is_none()
    }

    /// The literal path before the first variable segment, without a trailing `/`.
    pub fn literal_prefix(&self) -> String {
        let literals = self.0.iter().map_while(|segment| match segment {
            Segment::Literal(text) => Some(format!("/{text}")),
            Segment::Variable(_) => None,
        });
        literals.collect()
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|segment| match segment {
            Segment::Literal(text) => write!(f, "/{text}"),
            Segment::Variable(name) => write!(f, "/{{{name}}}"),
        })
    }
}

/// Rewrites host and path of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The host that is sent to the server.
    pub host: Option<String>,
    /// The path that is sent to the server; the query is kept.
    pub path: Option<PathRewrite>,
}

/// A replacement of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRewrite {
    /// Replaces the whole path.
    Full(String),
    /// Replaces the prefix that the route matches. Stored without a trailing `/`, so `/` is stored as an empty
    /// string.
    Prefix(String),
}

/// A redirect response. Parts that are not given stay as in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The scheme: `true` for `https`, `false` for `http`.
    pub https: Option<bool>,
    /// The host, without port.
    pub host: Option<String>,
    /// The port; `None` for the default port of the scheme.
    pub port: Option<u16>,
    /// The path; the query is kept.
    pub path: Option<PathRewrite>,
    /// The status: 301, 302, 303, 307 or 308.
    pub status: u16,
}

impl Redirect {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if !matches!(self.status, 301 | 302 | 303 | 307 | 308) {
            let problem = format!("{} is not a redirect status with a location", self.status);
            return Err(Invalid::new("status", problem, "write 301, 302, 303, 307 or 308"));
        }
        if self.port == Some(0) {
            return Err(Invalid::new("port", "0 is not a port", "write 1 to 65535"));
        }
        if (self.https, &self.host, self.port, &self.path) == (None, &None, None, &None) {
            let hint = "write scheme, host, port or path; to send calls to another service, write 'split'";
            return Err(Invalid::new("", "redirects to the same location", hint));
        }
        self.host.as_deref().map_or(Ok(()), |host| check_host(host).map_err(|e| e.within("host")))?;
        self.path.as_ref().map_or(Ok(()), PathRewrite::validate).map_err(|e| e.within("path"))
    }
}

impl Rewrite {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        self.host.as_deref().map_or(Ok(()), |host| check_host(host).map_err(|e| e.within("host")))?;
        self.path.as_ref().map_or(Ok(()), PathRewrite::validate).map_err(|e| e.within("path"))
    }
}

impl PathRewrite {
    fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Full(path) => check_path(path).map_err(|e| e.within("full")),
            Self::Prefix(path) if path.is_empty() => Ok(()),
            Self::Prefix(path) => check_path(path).map_err(|e| e.within("prefix")),
        }
    }
}

/// Checks that a path without a query is valid in a request line.
pub(crate) fn check_path(path: &str) -> Result<(), Invalid> {
    let plain =
        path.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'?' | b'#' | b'\\' | b'"' | b'<' | b'>'));
    // A reference that begins with `//`, such as in a redirect, would be read as a host.
    if path.starts_with('/') && !path.starts_with("//") && plain {
        return Ok(());
    }
    let hint =
        "start it with one '/', leave the query out and write other characters as %20, such as /v1/carts";
    Err(Invalid::new("", format!("'{path}' is not a path"), hint))
}

fn check_host(host: &str) -> Result<(), Invalid> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    if (1..=253).contains(&host.len()) && !host.starts_with(['.', '-']) && host.chars().all(plain) {
        return Ok(());
    }
    let hint = "write a name in lower case without port, such as cart.example.org";
    Err(Invalid::new("", format!("'{host}' is not a host"), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_template_matches_equal_segment_counts() {
        let orders = Template::new("/users/{id}/orders").unwrap();
        assert_eq!(
            (orders.to_string().as_str(), orders.literal_prefix().as_str()),
            ("/users/{id}/orders", "/users")
        );
        assert!(orders.matches("/users/7/orders"));
        for other in [
            "/users//orders",
            "/users/7",
            "/users/7/orders/",
            "/users/7/8/orders",
            "users/7/orders",
            "/",
            "*",
        ] {
            assert!(!orders.matches(other), "{other}");
        }
        for wrong in
            ["/users", "users/{id}", "/users/{}", "/users/a{id}", "/users/{id}x", "/{a b}", "/a?{id}", "/*"]
        {
            assert!(Template::new(wrong).is_err(), "{wrong}");
        }
    }
}
