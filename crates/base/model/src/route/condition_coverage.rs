//! Decides whether one condition matches every call that another condition matches. The later of two such routes is
//! never reached.

use super::{ClientMatch, GrpcMatch, HostMatch, Match, PathMatch, Segment, Template, TextMatch};

impl Match {
    /// Whether this condition matches every call that `other` matches. Returns `false` if that is undecidable, as for
    /// two regular expressions.
    pub fn covers(&self, other: &Self) -> bool {
        alternatives_cover(&self.clients, &other.clients, client_covers)
            && alternatives_cover(&self.hosts, &other.hosts, host_covers)
            && alternatives_cover(&self.methods, &other.methods, |ours, theirs| ours == theirs)
            && self.path.as_ref().is_none_or(|path| path_covers(path, other.path.as_ref()))
            && self.headers.iter().all(|ours| {
                other
                    .headers
                    .iter()
                    .any(|theirs| ours.name == theirs.name && text_covers(&ours.value, &theirs.value))
            })
            && self.query.iter().all(|ours| {
                other
                    .query
                    .iter()
                    .any(|theirs| ours.name == theirs.name && text_covers(&ours.value, &theirs.value))
            })
            && self
                .grpc
                .as_ref()
                .is_none_or(|grpc| other.grpc.as_ref().is_some_and(|other| grpc_covers(grpc, other)))
    }
}

/// Whether `ours` covers `theirs`, where entries are alternatives and an empty list matches everything.
pub fn alternatives_cover<T>(ours: &[T], theirs: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    let is_covered = |other: &T| ours.iter().any(|one| covers(one, other));
    ours.is_empty() || (!theirs.is_empty() && theirs.iter().all(is_covered))
}

fn client_covers(ours: &ClientMatch, theirs: &ClientMatch) -> bool {
    ours == theirs || (!theirs.as_str().contains('*') && ours.matches(theirs.as_str()))
}

fn host_covers(ours: &HostMatch, theirs: &HostMatch) -> bool {
    match (ours, theirs) {
        (HostMatch::Suffix(domain), HostMatch::Exact(name) | HostMatch::Suffix(name)) => {
            name.ends_with(domain.as_str())
        }
        (HostMatch::Exact(_), _) => ours == theirs,
    }
}

fn path_covers(ours: &PathMatch, theirs: Option<&PathMatch>) -> bool {
    match (ours, theirs) {
        // Every path begins with `/`.
        (PathMatch::Prefix(prefix), _) if prefix.is_empty() => true,
        (_, None) => false,
        (PathMatch::Prefix(prefix), Some(PathMatch::Exact(path) | PathMatch::Prefix(path))) => {
            is_below(path, prefix)
        }
        (PathMatch::Prefix(prefix), Some(PathMatch::Template(template))) => {
            is_below(&template.literal_prefix(), prefix)
        }
        (PathMatch::Template(template), Some(PathMatch::Exact(path))) => template.matches(path),
        (PathMatch::Template(ours), Some(PathMatch::Template(theirs))) => template_covers(ours, theirs),
        (PathMatch::Regex(pattern), Some(PathMatch::Exact(path))) => pattern.matches(path),
        (ours, Some(theirs)) => ours == theirs,
    }
}

/// Whether a path lies below a prefix, compared by segments.
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn template_covers(ours: &Template, theirs: &Template) -> bool {
    let fits = |(ours, theirs): (&Segment, &Segment)| match (ours, theirs) {
        (Segment::Variable(_), Segment::Variable(_)) => true,
        (Segment::Variable(_), Segment::Literal(text)) => !text.is_empty(),
        (Segment::Literal(ours), Segment::Literal(theirs)) => ours == theirs,
        (Segment::Literal(_), Segment::Variable(_)) => false,
    };
    ours.segments().len() == theirs.segments().len()
        && ours.segments().iter().zip(theirs.segments()).all(fits)
}

fn text_covers(ours: &TextMatch, theirs: &TextMatch) -> bool {
    match (ours, theirs) {
        (TextMatch::Present, TextMatch::Absent) => false,
        (TextMatch::Present, _) => true,
        (TextMatch::Prefix(prefix), TextMatch::Exact(text) | TextMatch::Prefix(text)) => {
            text.starts_with(prefix.as_str())
        }
        (TextMatch::Regex(pattern), TextMatch::Exact(text)) => pattern.matches(text),
        (ours, theirs) => ours == theirs,
    }
}

fn grpc_covers(ours: &GrpcMatch, theirs: &GrpcMatch) -> bool {
    ours.service == theirs.service && (ours.method.is_none() || ours.method == theirs.method)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeaderMatch, Pattern};

    fn path(path: PathMatch) -> Match {
        Match { path: Some(path), ..Match::default() }
    }

    fn prefix(text: &str) -> Match {
        path(PathMatch::Prefix(text.into()))
    }

    fn exact(text: &str) -> Match {
        path(PathMatch::Exact(text.into()))
    }

    fn template(text: &str) -> Match {
        path(PathMatch::Template(Template::new(text).unwrap()))
    }

    fn header(value: TextMatch) -> Match {
        Match { headers: vec![HeaderMatch { name: "x-tier".into(), value }], ..Match::default() }
    }

    #[test]
    fn catch_all_route_covers_every_match_and_no_narrower_one_covers_it() {
        for narrow in [exact("/a"), prefix("/a"), template("/a/{id}"), header(TextMatch::Present)] {
            for all in [Match::default(), prefix("")] {
                assert!(all.covers(&narrow) && !narrow.covers(&all), "{narrow:?}");
            }
            assert!(narrow.covers(&narrow));
        }
    }

    #[test]
    fn route_path_coverage_compares_whole_segments() {
        assert!(prefix("/a").covers(&exact("/a/b")) && prefix("/a").covers(&prefix("/a/b")));
        assert!(!prefix("/a").covers(&exact("/ab")) && !prefix("/a/b").covers(&prefix("/a")));
        assert!(
            prefix("/users").covers(&template("/users/{id}"))
                && !prefix("/users/me").covers(&template("/users/{id}"))
        );
        assert!(
            template("/users/{id}").covers(&exact("/users/7"))
                && !template("/users/{id}").covers(&exact("/users/7/x"))
        );
        assert!(
            template("/a/{x}").covers(&template("/a/{y}"))
                && !template("/a/{x}").covers(&template("/{a}/{x}"))
        );
        let regex = path(PathMatch::Regex(Pattern::new("/[0-9]+").unwrap()));
        assert!(regex.covers(&exact("/12")) && !regex.covers(&prefix("/1")) && regex.covers(&regex));
    }

    #[test]
    fn route_coverage_requires_each_condition_to_be_covered() {
        let value = |text: &str| TextMatch::Exact(text.into());
        assert!(header(TextMatch::Present).covers(&header(value("gold"))));
        assert!(header(TextMatch::Prefix("go".into())).covers(&header(value("gold"))));
        assert!(!header(value("gold")).covers(&header(TextMatch::Present)));
        let expression = || TextMatch::Regex(Pattern::new("go.+").unwrap());
        assert!(header(TextMatch::Present).covers(&header(expression())));
        assert!(header(expression()).covers(&header(value("gold"))));
        assert!(!header(expression()).covers(&header(TextMatch::Prefix("gold".into()))));
        assert!(!header(TextMatch::Present).covers(&header(TextMatch::Absent)));
        let methods = |list: &[&str]| Match {
            methods: list.iter().map(|method| (*method).to_owned()).collect(),
            ..Match::default()
        };
        assert!(
            methods(&["GET", "PUT"]).covers(&methods(&["GET"]))
                && !methods(&["GET"]).covers(&methods(&["GET", "PUT"]))
        );
        assert!(!methods(&["GET"]).covers(&Match::default()), "any method");
        let client =
            |text: &str| Match { clients: vec![ClientMatch::new(text).unwrap()], ..Match::default() };
        assert!(
            client("batch-*").covers(&client("batch-7")) && !client("batch-7").covers(&client("batch-*"))
        );
        let host = |host| Match { hosts: vec![host], ..Match::default() };
        let domain = || host(HostMatch::Suffix(".example.org".into()));
        assert!(domain().covers(&host(HostMatch::Exact("a.example.org".into()))));
        assert!(domain().covers(&host(HostMatch::Suffix(".b.example.org".into()))));
        assert!(!host(HostMatch::Exact("a.example.org".into())).covers(&domain()));
        let grpc = |method: Option<&str>| Match {
            grpc: Some(GrpcMatch { service: "shop.Cart".into(), method: method.map(Into::into) }),
            ..Match::default()
        };
        assert!(grpc(None).covers(&grpc(Some("Get"))) && !grpc(Some("Get")).covers(&grpc(None)));
        assert!(!grpc(None).covers(&Match::default()), "calls that are not gRPC");
    }
}
