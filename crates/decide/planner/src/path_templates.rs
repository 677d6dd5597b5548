//! Paths folded into templates, and classes of templates that cost about the same (SLATE, 3.1, asks for few and homogeneous classes).

mod classes;

use std::collections::BTreeMap;

pub use classes::{ProposedClass, propose_classes};

/// Maximum number of segments in a template; longer paths become a prefix.
const MAX_SEGMENTS: usize = 8;
/// Names below one segment before all of them are one variable: names of resources are few, names of things are many.
const MAX_NAMES: usize = 24;
/// Nodes of the tree; paths that need further ones are left out.
const MAX_NODES: usize = 8_192;
/// Maximum number of methods counted separately at each template.
const MAX_METHODS: usize = 9;

/// The paths of one service with their costs. Bounded.
#[derive(Debug, Default)]
pub struct PathTemplates {
    root: Segment,
    nodes: usize,
    left_out: u64,
}

/// One template with a method.
#[derive(Clone, Debug, PartialEq)]
pub struct PathTemplate {
    /// The method, upper case.
    pub method: String,
    /// Such as `/users/{id}/orders`; without a variable it is a path.
    pub path: String,
    /// Whether longer paths begin with it, and are meant too.
    pub is_prefix: bool,
    /// Number of requests.
    pub requests: u64,
    /// The mean cost, in the unit of the caller.
    pub mean_cost: f64,
}

#[derive(Debug, Default)]
struct Segment {
    names: BTreeMap<String, Segment>,
    /// Whether there were too many names, which are all the variable since.
    is_folded: bool,
    variable: Option<Box<Segment>>,
    /// Requests that end here, by method.
    ends: BTreeMap<String, Requests>,
    /// Requests with further segments, which are not told apart.
    longer: BTreeMap<String, Requests>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    count: u64,
    cost: f64,
}

impl PathTemplates {
    /// Counts a request. The query of its path does not matter. A cost that is negative or not finite is ignored with its request.
    pub fn observe(&mut self, method: &str, path: &str, cost: f64) {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        if !cost.is_finite() || cost < 0.0 || !path.starts_with('/') {
            return;
        }
        let segments: Vec<&str> = path[1..].split('/').collect();
        let (near, is_longer) =
            (&segments[..segments.len().min(MAX_SEGMENTS)], segments.len() > MAX_SEGMENTS);
        if self.nodes + near.len() > MAX_NODES {
            self.left_out += 1;
            return;
        }
        let mut at = &mut self.root;
        for segment in near {
            at = at.child(segment, &mut self.nodes);
        }
        let by_method = if is_longer { &mut at.longer } else { &mut at.ends };
        if by_method.len() < MAX_METHODS || by_method.contains_key(method) {
            let requests = by_method.entry(method.to_owned()).or_default();
            requests.count += 1;
            requests.cost += cost;
        }
    }

    /// The templates, those with the most requests first.
    pub fn templates(&self) -> Vec<PathTemplate> {
        let mut templates = Vec::new();
        self.root.collect("", &mut templates);
        templates.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.path.cmp(&b.path)));
        templates
    }

    /// Requests whose paths had no room.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Segment {
    fn child(&mut self, segment: &str, nodes: &mut usize) -> &mut Self {
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(segment) {
            self.fold_names();
        }
        let is_variable = self.is_folded || is_identifier(segment);
        let known = if is_variable { self.variable.is_some() } else { self.names.contains_key(segment) };
        *nodes += usize::from(!known);
        match is_variable {
            true => self.variable.get_or_insert_default(),
            false => self.names.entry(segment.to_owned()).or_default(),
        }
    }

    /// Makes all names one variable. A few names beside a variable stay, such as `/users/me`.
    fn fold_names(&mut self) {
        self.is_folded = true;
        let names = std::mem::take(&mut self.names);
        let variable = self.variable.get_or_insert_default();
        names.into_values().for_each(|name| variable.merge(name));
    }

    fn merge(&mut self, other: Self) {
        for (segment, below) in other.names {
            self.names.entry(segment).or_default().merge(below);
        }
        if let Some(below) = other.variable {
            self.variable.get_or_insert_default().merge(*below);
        }
        for (mine, theirs) in [(&mut self.ends, other.ends), (&mut self.longer, other.longer)] {
            for (method, requests) in theirs {
                let sum = mine.entry(method).or_default();
                sum.count += requests.count;
                sum.cost += requests.cost;
            }
        }
    }

    fn collect(&self, path: &str, templates: &mut Vec<PathTemplate>) {
        for (by_method, is_prefix) in [(&self.ends, false), (&self.longer, true)] {
            templates.extend(by_method.iter().map(|(method, requests)| PathTemplate {
                method: method.clone(),
                path: path.to_owned(),
                is_prefix,
                requests: requests.count,
                mean_cost: requests.cost / requests.count as f64,
            }));
        }
        for (name, below) in &self.names {
            below.collect(&format!("{path}/{name}"), templates);
        }
        if let Some(below) = &self.variable {
            // Names of variables differ within a template.
            let number = path.matches('{').count();
            let name = if number == 0 { "id".to_owned() } else { format!("id{}", number + 1) };
            below.collect(&format!("{path}/{{{name}}}"), templates);
        }
    }
}

/// Whether a segment names a thing and not a kind of things: a number, a UUID, a hash, or a word with several digits.
fn is_identifier(segment: &str) -> bool {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let is_hexadecimal = segment.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_version = segment.len() <= 3 && segment.starts_with('v');
    !is_version
        && (digits > 0 && digits == segment.len()
            || is_hexadecimal && digits > 0 && segment.len() >= 8
            || digits >= 3
            || segment.len() > 32
            || segment.contains('%')
            || segment.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(paths: impl IntoIterator<Item = String>) -> Vec<(String, u64)> {
        let mut templates = PathTemplates::default();
        paths.into_iter().for_each(|path| templates.observe("GET", &path, 1.0));
        templates.templates().into_iter().map(|one| (one.path, one.requests)).collect()
    }

    fn expect(paths: impl IntoIterator<Item = String>, expected: &[(&str, u64)]) {
        let expected: Vec<_> = expected.iter().map(|(path, count)| (path.to_string(), *count)).collect();
        assert_eq!(folded(paths), expected);
    }

    #[test]
    fn path_identifiers_become_template_variables_and_names_stay() {
        let items = (0..50).map(|n| format!("/v1/items/{n}"));
        let orders =
            (0..20).map(|n| format!("/v1/users/3f2504e0-4f89-11d3-9a0c-0305e82c33{n:02}/orders/{n}?page=2"));
        expect(
            items.chain(orders).chain(["/v1/users/me".into(), "/".into()]),
            &[("/v1/items/{id}", 50), ("/v1/users/{id}/orders/{id2}", 20), ("/", 1), ("/v1/users/me", 1)],
        );
    }

    #[test]
    fn many_names_below_one_path_segment_become_template_variable() {
        let letter = |n: u8| char::from(b'a' + n % 26);
        let names = (0..60_u8).map(|n| format!("/tags/{}{}/posts", letter(n), letter(n / 26)));
        expect(names, &[("/tags/{id}/posts", 60)]);
    }

    #[test]
    fn long_paths_become_prefix_templates_and_template_tree_is_bounded() {
        let mut templates = PathTemplates::default();
        templates.observe("GET", "/a/b/c/d/e/f/g/h/i/j", 1.0);
        templates.observe("GET", "/a", f64::NAN);
        templates.observe("GET", "*", 1.0);
        let all = templates.templates();
        assert_eq!((all.len(), all[0].path.as_str(), all[0].is_prefix), (1, "/a/b/c/d/e/f/g/h", true));
        let letters =
            |n: u32| (0..4).map(|at| char::from(b'a' + (n >> (4 * at) & 15) as u8)).collect::<String>();
        for n in 0..60_000 {
            let text = letters(n);
            let (one, two) = text.split_at(1);
            templates.observe("GET", &format!("/{one}/{}/{}/{}", &two[..1], &two[1..2], &two[2..]), 1.0);
        }
        assert!(templates.left_out() > 0 && templates.nodes <= MAX_NODES);
    }
}
