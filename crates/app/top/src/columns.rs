//! Formats the numbers of a group as text.

use fairmesh_console::output::{ago, decimal};

use crate::{arguments::GroupBy, groups::Group};

/// Headings of all columns of a view.
pub(crate) fn headings(by: GroupBy) -> Vec<&'static str> {
    let numbers: &[&str] = match by {
        GroupBy::Denied => &["CALLS"],
        _ => &["CALLS/S", "FAILED", "RETRIES/S", "P50", "P99", "WASTED", "EGRESS/S", "AGE"],
    };
    by.headings().iter().chain(numbers).copied().collect()
}

/// The cells of a group, for each of [`headings`].
pub(crate) fn cells(by: GroupBy, group: &Group) -> Vec<String> {
    let none = || "-".to_owned();
    let mut cells: Vec<String> = group.names.iter().map(|name| printable(name)).collect();
    if by == GroupBy::Denied {
        cells.push(group.sum.counts.calls().to_string());
        return cells;
    }
    let latency = |part| group.sum.counts.latency_quantile_us(part).map_or_else(none, millis);
    cells.extend([
        decimal(group.sum.rate, 1),
        group.sum.failed_part().map_or_else(none, |part| decimal(part * 100.0, 2) + " %"),
        decimal(group.sum.retries, 1),
        latency(0.5),
        latency(0.99),
        group.wasted.map_or_else(none, |cores| decimal(cores, 2)),
        bytes(group.sum.egress),
        ago(group.sum.age_ms),
    ]);
    cells
}

/// Escapes a name: names come from callers, and must not control the terminal.
fn printable(name: &str) -> String {
    name.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

fn millis(us: u64) -> String {
    decimal(us as f64 / 1_000.0, 1) + " ms"
}

fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let (mut bytes, mut unit) = (bytes, 0);
    while bytes >= 1_000.0 && unit + 1 < UNITS.len() {
        bytes /= 1_000.0;
        unit += 1;
    }
    format!("{} {}", decimal(bytes, usize::from(unit > 0)), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_names_cannot_control_terminal() {
        let group = Group { names: vec!["a\u{1b}[2J".into()], ..Group::default() };
        assert_eq!(cells(GroupBy::Services, &group)[0], "a?[2J");
    }

    #[test]
    fn top_shows_bytes_with_units() {
        assert_eq!([0.0, 999.0, 1_500.0, 2.5e9].map(bytes), ["0 B", "999 B", "1.5 KB", "2.5 GB"]);
    }

    #[test]
    fn each_column_of_top_has_heading() {
        for by in GroupBy::ALL {
            let names = vec![String::new(); by.headings().len()];
            let group = Group { names, ..Group::default() };
            assert_eq!(headings(by).len(), cells(by, &group).len());
        }
    }
}
