use fairmesh_model::{
    ClientMatch, GrpcMatch, HeaderMatch, HostMatch, Invalid, Match, PathMatch, Pattern, QueryMatch, Template,
    TextMatch,
};

use crate::v1::{self, header_match::Value, r#match::Path};

impl From<Match> for v1::Match {
    fn from(matches: Match) -> Self {
        let host = |host| match host {
            HostMatch::Exact(host) => host,
            HostMatch::Suffix(suffix) => format!("*{suffix}"),
        };
        let (grpc_service, grpc_method) = match matches.grpc {
            Some(grpc) => (grpc.service, grpc.method.unwrap_or_default()),
            None => Default::default(),
        };
        Self {
            clients: matches.clients.iter().map(|client| client.as_str().to_owned()).collect(),
            hosts: matches.hosts.into_iter().map(host).collect(),
            path: matches.path.map(|path| match path {
                PathMatch::Exact(path) => Path::PathExact(path),
                PathMatch::Prefix(path) => Path::PathPrefix(path),
                PathMatch::Template(template) => Path::PathTemplate(template.to_string()),
                PathMatch::Regex(pattern) => Path::PathRegex(pattern.as_str().to_owned()),
            }),
            methods: matches.methods,
            headers: matches.headers.into_iter().map(|header| text(header.name, header.value)).collect(),
            query: matches.query.into_iter().map(|query| text(query.name, query.value)).collect(),
            grpc_service,
            grpc_method,
        }
    }
}

impl TryFrom<v1::Match> for Match {
    type Error = Invalid;

    fn try_from(message: v1::Match) -> Result<Self, Invalid> {
        let header = |(i, header)| read_header(header).map_err(|e| e.within(format!("headers[{i}]")));
        let client = |text| ClientMatch::new(text).map_err(|e| e.within("clients"));
        let query = |(i, query)| read_query(query).map_err(|e| e.within(format!("query[{i}]")));
        if let Some(method) = message.methods.iter().find(|method| !is_method(method)) {
            let problem = format!("'{method}' is not an HTTP method");
            return Err(Invalid::new("methods", problem, "write methods in upper case, such as GET"));
        }
        Ok(Self {
            clients: message.clients.into_iter().map(client).collect::<Result<_, Invalid>>()?,
            hosts: message.hosts.into_iter().map(host).collect::<Result<_, _>>()?,
            path: message.path.map(path).transpose()?,
            methods: message.methods,
            headers: message.headers.into_iter().enumerate().map(header).collect::<Result<_, _>>()?,
            query: message.query.into_iter().enumerate().map(query).collect::<Result<_, Invalid>>()?,
            grpc: grpc(message.grpc_service, message.grpc_method)?,
        })
    }
}

fn is_method(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_lowercase())
}

fn host(text: String) -> Result<HostMatch, Invalid> {
    let name = text.strip_prefix("*.").unwrap_or(&text);
    let plain = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase() && c != '*';
    if name.is_empty() || !name.chars().all(plain) {
        let hint =
            "write a host in lower case, such as cart.example.org, or *.example.org for any name below";
        return Err(Invalid::new("hosts", format!("'{text}' is not a host"), hint));
    }
    Ok(match text.strip_prefix('*') {
        Some(suffix) => HostMatch::Suffix(suffix.to_owned()),
        None => HostMatch::Exact(text),
    })
}

fn path(message: Path) -> Result<PathMatch, Invalid> {
    let refuse = |field, text: &str| {
        let problem = format!("'{text}' cannot match any path");
        Err(Invalid::new(field, problem, "start the path with '/'"))
    };
    match message {
        Path::PathExact(path) if path.starts_with('/') => Ok(PathMatch::Exact(path)),
        Path::PathExact(path) => refuse("path_exact", &path),
        Path::PathPrefix(path) if path.is_empty() || path.starts_with('/') => Ok(PathMatch::Prefix(path)),
        Path::PathPrefix(path) => refuse("path_prefix", &path),
        Path::PathTemplate(text) => {
            Template::new(&text).map(PathMatch::Template).map_err(|e| e.within("path_template"))
        }
        Path::PathRegex(text) => Pattern::new(text).map(PathMatch::Regex).map_err(|e| e.within("path_regex")),
    }
}

fn grpc(service: String, method: String) -> Result<Option<GrpcMatch>, Invalid> {
    let method = (!method.is_empty()).then_some(method);
    match (service.is_empty(), method) {
        (false, method) => Ok(Some(GrpcMatch { service, method })),
        (true, None) => Ok(None),
        (true, Some(method)) => {
            let problem = format!("method '{method}' has no service");
            Err(Invalid::new("grpc_service", problem, "name the gRPC service, such as shop.v1.Cart"))
        }
    }
}

fn text(name: String, value: TextMatch) -> v1::HeaderMatch {
    let value = match value {
        TextMatch::Present => Value::Present(true),
        TextMatch::Absent => Value::Present(false),
        TextMatch::Exact(text) => Value::Exact(text),
        TextMatch::Prefix(text) => Value::Prefix(text),
        TextMatch::Regex(pattern) => Value::Regex(pattern.as_str().to_owned()),
    };
    v1::HeaderMatch { name, value: Some(value) }
}

fn read_header(message: v1::HeaderMatch) -> Result<HeaderMatch, Invalid> {
    let name = message.name;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()) {
        let problem = format!("'{name}' is not a header name");
        return Err(Invalid::new("name", problem, "write the header in lower case, such as x-user"));
    }
    Ok(HeaderMatch { name, value: read_text(message.value)? })
}

fn read_query(message: v1::HeaderMatch) -> Result<QueryMatch, Invalid> {
    if message.name.is_empty() {
        return Err(Invalid::new("name", "the name is empty", "write the parameter's name, such as page"));
    }
    Ok(QueryMatch { name: message.name, value: read_text(message.value)? })
}

fn read_text(value: Option<Value>) -> Result<TextMatch, Invalid> {
    match value {
        Some(Value::Present(true)) => Ok(TextMatch::Present),
        Some(Value::Present(false)) => Ok(TextMatch::Absent),
        Some(Value::Exact(text)) => Ok(TextMatch::Exact(text)),
        Some(Value::Prefix(text)) => Ok(TextMatch::Prefix(text)),
        Some(Value::Regex(text)) => Pattern::new(text).map(TextMatch::Regex).map_err(|e| e.within("regex")),
        None => Err(Invalid::new("value", "is empty", "set present, exact, prefix or regex")),
    }
}
