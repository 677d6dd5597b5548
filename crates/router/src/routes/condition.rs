use fairmesh_model::{GrpcMatch, HeaderMatch, HostMatch, Match, PathMatch, TextMatch};

use crate::{Headers, RequestView};

/// A request with its host and path cut to what conditions compare.
#[derive(Debug)]
pub(super) struct View<'a, H: Headers + ?Sized> {
    /// Without port, in any case.
    pub(super) host: &'a str,
    /// Without query.
    pub(super) path: &'a str,
    pub(super) method: &'a str,
    headers: &'a H,
    grpc: bool,
}

impl<'a, H: Headers + ?Sized> View<'a, H> {
    #[inline]
    pub(super) fn new(request: &RequestView<'a, H>) -> Self {
        Self {
            host: without_port(request.host),
            path: request.path.split_once('?').map_or(request.path, |(path, _)| path),
            method: request.method,
            headers: request.headers,
            grpc: request.grpc,
        }
    }

    /// Whether all conditions hold.
    #[inline]
    pub(super) fn satisfies(&self, wanted: &Match) -> bool {
        wanted.path.as_ref().is_none_or(|path| path_satisfies(self.path, path))
            && (wanted.methods.is_empty() || wanted.methods.iter().any(|method| method == self.method))
            && (wanted.hosts.is_empty() || wanted.hosts.iter().any(|host| host_satisfies(self.host, host)))
            && wanted.grpc.as_ref().is_none_or(|grpc| self.grpc && grpc_satisfies(self.path, grpc))
            && wanted.headers.iter().all(|header| self.has(header))
    }

    fn has(&self, wanted: &HeaderMatch) -> bool {
        self.headers.get(&wanted.name).is_some_and(|value| match &wanted.value {
            TextMatch::Present => true,
            TextMatch::Exact(text) => value == text.as_bytes(),
            TextMatch::Prefix(text) => value.starts_with(text.as_bytes()),
        })
    }
}

/// `example.org:80` → `example.org`, `[::1]:80` → `[::1]`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !within_brackets(name) => name,
        _ => host,
    }
}

/// Whether the end of `text` lies inside the brackets of an IPv6 address, so that a colon after it is part of that.
fn within_brackets(text: &str) -> bool {
    text.starts_with('[') && !text.ends_with(']')
}

pub(super) fn host_satisfies(host: &str, wanted: &HostMatch) -> bool {
    match wanted {
        HostMatch::Exact(name) => host.eq_ignore_ascii_case(name),
        HostMatch::Suffix(domain) => host
            .len()
            .checked_sub(domain.len())
            .is_some_and(|cut| cut > 0 && host.as_bytes()[cut..].eq_ignore_ascii_case(domain.as_bytes())),
    }
}

#[inline]
pub(super) fn path_satisfies(path: &str, wanted: &PathMatch) -> bool {
    match wanted {
        PathMatch::Exact(exact) => path == exact,
        PathMatch::Prefix(prefix) => {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    }
}

/// A gRPC path is `/service/method`, and neither part holds a `/`.
fn grpc_satisfies(path: &str, wanted: &GrpcMatch) -> bool {
    path.strip_prefix('/').and_then(|path| path.split_once('/')).is_some_and(|(service, method)| {
        service == wanted.service && wanted.method.as_ref().is_none_or(|name| name == method)
    })
}
