//! Finds the positions of invalid values: parses a document again, only when a value is invalid.

use std::fmt;

use fairmesh_model::Invalid;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};

use super::{error::Diagnostic, options};

/// Any YAML value, with positions.
enum Tree {
    Scalar(String),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(String, Spanned<Tree>)>),
}

/// Finds the position of the invalid field, or of its nearest enclosing field that is present.
pub(super) fn locate(text: &str, invalid: Invalid) -> Diagnostic {
    let message = match invalid.field.as_str() {
        "" => invalid.problem,
        field => format!("{field}: {}", invalid.problem),
    };
    match serde_saphyr::from_str_with_options::<Spanned<Tree>>(text, options()) {
        Ok(tree) => {
            let found = find(&tree, &invalid.field);
            let mut diagnostic = Diagnostic::at(found.referenced, message, invalid.hint);
            diagnostic.is_of_whole = !matches!(found.value, Tree::Scalar(_));
            diagnostic
        }
        // The text was valid before, so only the position is missing.
        Err(_) => Diagnostic::at_start(message, invalid.hint),
    }
}

fn find<'a>(root: &'a Spanned<Tree>, path: &str) -> &'a Spanned<Tree> {
    let mut here = root;
    for step in path.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
        match here.value.child(step) {
            Some(child) => here = child,
            None => break,
        }
    }
    here
}

/// Returns the path of the value at position `at` in `text`. `path` is the path of the same value in a copy of the
/// text without some list entries. `None` if no such path exists in `text`.
pub(super) fn path_at(text: &str, path: &str, at: Location) -> Option<String> {
    let tree = serde_saphyr::from_str_with_options::<Spanned<Tree>>(text, options()).ok()?;
    numbered(&tree, path, at)
}

fn numbered(here: &Spanned<Tree>, path: &str, at: Location) -> Option<String> {
    let Some((list, rest)) = path.split_once('[') else {
        let found = find(here, path).referenced;
        return ((found.line(), found.column()) == (at.line(), at.column())).then(|| path.to_owned());
    };
    let (number, rest) = rest.split_once(']')?;
    let Tree::List(entries) = &find(here, list).value else { return None };
    let later = entries.iter().enumerate().skip(number.parse().ok()?);
    later.filter_map(|(number, entry)| Some(format!("{list}[{number}]{}", numbered(entry, rest, at)?))).next()
}

impl Tree {
    /// Returns the entry of a map by key, or the entry of a list by index or by its `name`.
    fn child(&self, step: &str) -> Option<&Spanned<Tree>> {
        match self {
            Self::Scalar(_) => None,
            Self::Map(entries) => entries.iter().find(|(key, _)| key == step).map(|(_, value)| value),
            Self::List(entries) => match step.parse::<usize>() {
                Ok(position) => entries.get(position),
                Err(_) => entries.iter().find(|entry| entry.value.name() == Some(step)),
            },
        }
    }

    fn name(&self) -> Option<&str> {
        match &self.child("name")?.value {
            Self::Scalar(name) => Some(name),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

/// Visits scalars and keeps them as strings.
macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: Error>(self, value: $type) -> Result<Tree, E> {
            Ok(Tree::Scalar(value.to_string()))
        })*
    };
}

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML")
    }

    scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(String::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = list.next_element()? {
            entries.push(entry);
        }
        Ok(Tree::List(entries))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}
