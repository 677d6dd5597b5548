//! A literal implementation of the documented route conditions, which shares no code with the compiled table. The fuzz
//! target includes this file too.

use fairmesh_model::{HeaderMatch, HostMatch, Match, PathMatch, QueryMatch, TextMatch};

use super::RequestView;

pub(super) type Pairs = Vec<(String, String)>;

fn text_fits(value: Option<&str>, wanted: &TextMatch) -> bool {
    match wanted {
        TextMatch::Absent => value.is_none(),
        TextMatch::Present => value.is_some(),
        TextMatch::Exact(text) => value == Some(text),
        TextMatch::Prefix(text) => value.is_some_and(|value| value.starts_with(text)),
        TextMatch::Regex(pattern) => value.is_some_and(|value| pattern.matches(value)),
    }
}

/// Whether the conditions match a request from client `web-1`.
pub(super) fn fits(wanted: &Match, request: &RequestView<'_, Pairs>) -> bool {
    let host = request.host.to_lowercase();
    let host = host.split(':').next().unwrap_or_default().trim_end_matches('.');
    let path = request.path.split('?').next().unwrap_or_default();
    let segments = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
    let path_fits = match &wanted.path {
        None => true,
        Some(PathMatch::Exact(exact)) => exact == path,
        Some(PathMatch::Prefix(prefix)) => segments(path).starts_with(&segments(prefix)),
        Some(PathMatch::Template(template)) => {
            let (open, parts) = (segments(&template.to_string()), segments(path));
            let fits = |(open, part): (&String, &String)| {
                if open.starts_with('{') { !part.is_empty() } else { open == part }
            };
            open.len() == parts.len() && open.iter().zip(&parts).all(fits)
        }
        // Tests generate only patterns that consist of `/.*/` and a word.
        Some(PathMatch::Regex(pattern)) => {
            let end = pattern.as_str().trim_start_matches("/.*");
            path.starts_with('/') && path[1..].ends_with(end)
        }
    };
    let host_fits = wanted.hosts.iter().any(|wanted| match wanted {
        HostMatch::Exact(name) => name == host,
        HostMatch::Suffix(domain) => host.ends_with(domain) && host != domain,
    });
    let header_fits = |header: &HeaderMatch| {
        let value = request.headers.iter().find(|(name, _)| *name == header.name);
        let value = value.map(|(_, value)| value.as_str());
        let authority = Some(request.host).filter(|host| !host.is_empty());
        text_fits(if header.name == "host" { authority } else { value }, &header.value)
    };
    let query_fits = |wanted: &QueryMatch| {
        let query = request.path.split_once('?').map_or("", |(_, query)| query);
        let pairs: Vec<Vec<&str>> = query.split('&').map(|pair| pair.splitn(2, '=').collect()).collect();
        let found = pairs.iter().find(|pair| pair[0] == wanted.name);
        text_fits(found.map(|pair| pair.get(1).copied().unwrap_or("")), &wanted.value)
    };
    let grpc_fits = wanted.grpc.as_ref().is_none_or(|grpc| {
        let parts = segments(path);
        let named = parts.len() >= 3 && parts[0].is_empty() && parts[1] == grpc.service;
        request.grpc && named && grpc.method.as_ref().is_none_or(|method| *method == parts[2..].join("/"))
    });
    let client_fits = wanted.clients.is_empty() || wanted.clients[0].as_str().starts_with("web");
    client_fits
        && path_fits
        && (wanted.hosts.is_empty() || host_fits)
        && (wanted.methods.is_empty() || wanted.methods.iter().any(|method| method == request.method))
        && wanted.headers.iter().all(header_fits)
        && wanted.query.iter().all(query_fits)
        && grpc_fits
}
