//! Output: tables for people, JSON and YAML for programs.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use comfy_table::{Table, presets};
use fairmesh_model::spec::Document;
use ratatui::crossterm::terminal;
use serde::Serialize;

use crate::{arguments::Format, failure::Failure};

/// Objects of one kind, in every output format.
#[derive(Debug, Default)]
pub struct Listing {
    /// Column headings.
    pub head: Vec<&'static str>,
    /// One row per object.
    pub rows: Vec<Vec<String>>,
    /// One JSON value per object.
    pub items: Vec<serde_json::Value>,
    /// The objects as `apply` reads them; empty if it does not read this kind.
    pub documents: Vec<Document>,
    /// Additional tables below the first: columns and rows.
    pub further: Vec<(&'static [&'static str], Vec<Vec<String>>)>,
    /// Text printed instead of an empty table, if it is known why there are no objects.
    pub why_empty: Option<String>,
    /// Columns of the first table that are cut where it is wider than the terminal. Empty if nothing is cut. Output to a
    /// file or another program is never cut.
    pub cut_columns: &'static [&'static str],
}

impl Listing {
    /// Creates an empty list with these columns.
    pub fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), ..Self::default() }
    }

    /// Adds an object: its row, and its JSON.
    pub fn add(&mut self, row: Vec<String>, item: serde_json::Value) {
        self.rows.push(row);
        self.items.push(item);
    }

    /// The tables. The first is cut to `width`, if it is known.
    fn tables(&self, width: Option<usize>) -> String {
        let first = match width.filter(|_| !self.cut_columns.is_empty()) {
            Some(width) => table(&self.head, &fit(&self.head, &self.rows, (self.cut_columns, width))),
            None => table(&self.head, &self.rows),
        };
        let further = self.further.iter().filter(|(_, rows)| !rows.is_empty());
        let further = further.map(|(head, rows)| format!("\n{}", table(head, rows)));
        first + &further.collect::<String>()
    }

    /// Prints all objects in the given format.
    pub fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Table if self.rows.is_empty() => {
                note(self.why_empty.as_deref().unwrap_or("nothing found"));
                Ok(())
            }
            Format::Table => write(&self.tables(terminal_width())),
            Format::Json => write(&json(&self.items)?),
            Format::Yaml if self.documents.is_empty() => write(&yaml(&self.items)?),
            Format::Yaml => write(&documents(&self.documents)?),
        }
    }
}

/// Minimum width of a column that is cut.
const MIN_CUT_WIDTH: usize = 8;
/// Spaces between columns.
const GAP: usize = 2;

/// Number of columns of the terminal; `None` where standard output is none, or its width is unknown.
fn terminal_width() -> Option<usize> {
    let size = if io::stdout().is_terminal() { terminal::size().ok() } else { None };
    size.map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// Cuts cells of these columns, the widest column first, until the table is as narrow as `width` or nothing more can be cut.
fn fit(head: &[&str], rows: &[Vec<String>], (columns, width): (&[&str], usize)) -> Vec<Vec<String>> {
    let mut rows = rows.to_vec();
    let natural = Columns::new(head, &rows).widths;
    let mut widths = natural.clone();
    let least = |at: usize| natural[at].min(head[at].chars().count().max(MIN_CUT_WIDTH));
    let places: Vec<usize> =
        columns.iter().filter_map(|column| head.iter().position(|title| title == column)).collect();
    let total: usize = natural.iter().map(|one| one + GAP).sum::<usize>().saturating_sub(GAP);
    for _ in width..total {
        let can_be_cut = places.iter().copied().filter(|at| widths[*at] > least(*at));
        let Some(widest) = can_be_cut.max_by_key(|at| widths[*at]) else { break };
        widths[widest] -= 1;
    }
    for (cell, width) in rows.iter_mut().flat_map(|row| row.iter_mut().zip(&widths)) {
        cut_cell(cell, *width);
    }
    rows
}

fn cut_cell(cell: &mut String, width: usize) {
    if cell.chars().count() > width {
        *cell = cell.chars().take(width.saturating_sub(1)).chain(['…']).collect();
    }
}

/// Prints one value that has no table; `text` is its form for people.
pub fn print_one<T: Serialize>(format: Format, value: &T, text: &str) -> Result<(), Failure> {
    match format {
        Format::Table => write(text),
        Format::Json => write(&json(value)?),
        Format::Yaml => write(&yaml(value)?),
    }
}

/// Formats a number with `places` decimals. Zero has no sign: the sum of no numbers is -0.
pub fn decimal(number: f64, places: usize) -> String {
    let text = format!("{number:.places$}");
    match text.strip_prefix('-') {
        Some(zero) if zero.bytes().all(|byte| matches!(byte, b'0' | b'.')) => zero.to_owned(),
        _ => text,
    }
}

/// Formats the time since an event, as in `5 min ago`.
pub fn ago(ms: u64) -> String {
    let time = Duration::from_millis(ms);
    match time.as_secs() {
        ..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ ..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

/// A time in seconds since 1970 as RFC 3339.
pub fn timestamp(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "unknown".into(), |time| time.to_string())
}

/// Formats a table with aligned columns and no lines, which is also easy to split.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
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

/// Columns of a table that is printed row by row.
#[derive(Debug)]
pub struct Columns {
    head: Vec<String>,
    widths: Vec<usize>,
}

impl Columns {
    /// Columns that are as wide as these rows need.
    pub fn new(head: &[&str], rows: &[Vec<String>]) -> Self {
        let width = |cell: &str| cell.chars().count();
        let mut widths: Vec<usize> = head.iter().map(|title| width(title)).collect();
        for row in rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(cell));
            }
        }
        Self { head: head.iter().map(|title| (*title).to_owned()).collect(), widths }
    }

    /// The line of column titles.
    pub fn header(&self) -> String {
        self.line(&self.head)
    }

    /// The line of one row.
    pub fn line(&self, row: &[String]) -> String {
        let cells = row.iter().zip(&self.widths).map(|(cell, width)| format!("{cell:<width$}  "));
        cells.collect::<String>().trim_end().to_owned() + "\n"
    }
}

/// YAML of documents, one after the other, as `apply` reads them.
pub fn documents(documents: &[Document]) -> Result<String, Failure> {
    let texts = documents.iter().map(yaml).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join("---\n"))
}

/// YAML of any value.
pub fn yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(Failure::failed)
}

/// JSON of any value, and a newline.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(Failure::failed)
}

/// Writes to standard output. A closed pipe (`| head`) is no error.
pub fn write(text: &str) -> Result<(), Failure> {
    write_bytes(text.as_bytes())
}

/// Writes bytes to standard output. A closed pipe is no error.
pub fn write_bytes(bytes: &[u8]) -> Result<(), Failure> {
    write_while_open(bytes).map(drop)
}

/// Writes a part of endless output; returns whether the reader still reads.
pub fn write_while_open(bytes: &[u8]) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}

/// Whether errors, warnings and notes on standard error are JSON objects, one per line.
static JSON_MESSAGES: AtomicBool = AtomicBool::new(false);

/// Selects JSON messages if the process's arguments select JSON. Called before the arguments are parsed, since parsing
/// may fail.
pub fn select_messages<'a>(arguments: impl Iterator<Item = &'a str>) {
    let own: Vec<&str> = arguments.take_while(|argument| *argument != "--").collect();
    let single = ["--json", "--output=json", "-ojson", "-o=json"];
    let json = own.iter().any(|argument| single.contains(argument))
        || own.windows(2).any(|pair| matches!(pair, ["-o" | "--output", "json"]));
    JSON_MESSAGES.store(json, Relaxed);
}

/// Whether messages are JSON.
pub fn has_json_messages() -> bool {
    JSON_MESSAGES.load(Relaxed)
}

/// Prints a warning to standard error.
pub fn warn(text: impl fmt::Display) {
    message("warning", "warning: ", &text);
}

/// Prints a note to standard error.
pub fn note(text: impl fmt::Display) {
    message("note", "", &text);
}

fn message(kind: &str, title: &str, text: &dyn fmt::Display) {
    match has_json_messages() {
        true => say(serde_json::json!({ kind: text.to_string() })),
        false => say(format_args!("{title}{text}")),
    }
}

/// Prints a line to standard error. If standard error is closed, the line is lost, whereas `eprintln` would panic.
pub fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_zero_is_formatted_without_sign() {
        let none: [f64; 0] = [];
        assert_eq!(decimal(none.iter().sum(), 1), "0.0");
        assert_eq!((decimal(-0.04, 1), decimal(-0.4, 0)), ("0.0".to_owned(), "0".to_owned()));
        assert_eq!((decimal(-0.06, 1), decimal(12.25, 1)), ("-0.1".to_owned(), "12.2".to_owned()));
    }

    #[test]
    fn table_is_cut_to_width_at_its_widest_columns() {
        let head = ["KEY", "BEFORE", "AFTER"];
        let rows = vec![vec!["/t/shop/cart".to_owned(), "b".repeat(40), "ä".repeat(40)]];
        let widest = |width| {
            let cut = fit(&head, &rows, (&["BEFORE", "AFTER", "KEY"], width));
            let widths = cut[0].iter().map(|cell| cell.chars().count()).collect::<Vec<_>>();
            let lines = table(&head, &cut);
            (widths, lines.lines().map(|line| line.chars().count()).max().unwrap())
        };
        assert_eq!(widest(200), (vec![12, 40, 40], 96));
        assert_eq!(widest(90), (vec![12, 37, 37], 90));
        assert_eq!(widest(40), (vec![12, 12, 12], 40));
        assert_eq!(widest(10), (vec![8, 8, 8], 28), "nothing more can be cut");
    }

    #[test]
    fn table_is_not_cut_where_standard_output_is_no_terminal() {
        let row = vec!["/t/shop/cart".to_owned(), "b".repeat(400)];
        let listing =
            Listing { rows: vec![row], cut_columns: &["BEFORE"], ..Listing::new(&["KEY", "BEFORE"]) };
        assert!(listing.tables(None).contains(&"b".repeat(400)));
        assert!(!listing.tables(Some(80)).contains(&"b".repeat(80)));
    }

    #[test]
    fn messages_are_json_if_output_is_json() {
        let selects = |line: &str| {
            select_messages(line.split(' '));
            has_json_messages()
        };
        for line in
            ["get services --json", "get services -o json", "get services --output=json", "get -ojson x"]
        {
            assert!(selects(line), "{line}");
        }
        for line in ["get services", "get services -o yaml", "register shop/x -- program --json"] {
            assert!(!selects(line), "{line}");
        }
    }
}
