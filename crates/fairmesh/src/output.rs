//! Output: tables for people, JSON and YAML for programs.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use fairmesh_model::spec::Document;
use serde::Serialize;

use crate::{cli::Format, failure::Failure};

/// Objects of one kind, in every output format.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Column headings.
    pub(crate) head: &'static [&'static str],
    /// One row per object.
    pub(crate) rows: Vec<Vec<String>>,
    /// One JSON value per object.
    pub(crate) items: Vec<serde_json::Value>,
    /// The objects as `apply` reads them; empty if it does not read this kind.
    pub(crate) documents: Vec<Document>,
    /// A table below the first one: its columns and rows.
    pub(crate) second: Option<(&'static [&'static str], Vec<Vec<String>>)>,
    /// Printed instead of an empty table, if the reason is known.
    pub(crate) why_empty: Option<String>,
}

impl Listing {
    /// An empty list with these columns.
    pub(crate) fn new(head: &'static [&'static str]) -> Self {
        Self { head, ..Self::default() }
    }

    /// Adds an object: its row, and its JSON.
    pub(crate) fn add(&mut self, row: Vec<String>, item: serde_json::Value) {
        self.rows.push(row);
        self.items.push(item);
    }

    /// Prints all objects in one format.
    pub(crate) fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Table if self.rows.is_empty() => {
                eprintln!("{}", self.why_empty.as_deref().unwrap_or("nothing found"));
                Ok(())
            }
            Format::Table => {
                let first = table(self.head, &self.rows);
                let second = self.second.as_ref().filter(|(_, rows)| !rows.is_empty());
                let second = second.map(|(head, rows)| format!("\n{}", table(head, rows)));
                write(&(first + &second.unwrap_or_default()))
            }
            Format::Json => write(&json(&self.items)?),
            Format::Yaml if self.documents.is_empty() => write(&yaml(&self.items)?),
            Format::Yaml => write(&documents(&self.documents)?),
        }
    }
}

/// Prints one value that has no table: `text` for people.
pub(crate) fn print_one<T: Serialize>(format: Format, value: &T, text: &str) -> Result<(), Failure> {
    match format {
        Format::Table => write(text),
        Format::Json => write(&json(value)?),
        Format::Yaml => write(&yaml(value)?),
    }
}

/// A table with aligned columns and no lines, which is also easy to split.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// YAML of documents, one after the other, as `apply` reads them.
pub(crate) fn documents(documents: &[Document]) -> Result<String, Failure> {
    let texts = documents.iter().map(yaml).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join("---\n"))
}

/// YAML of any value.
pub(crate) fn yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(Failure::failed)
}

fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(Failure::failed)
}

/// Writes to standard output. A closed pipe (`| head`) is no failure.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    write_bytes(text.as_bytes())
}

/// The same for bytes.
pub(crate) fn write_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
