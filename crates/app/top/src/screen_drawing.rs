//! Draws the screen.

use fairmesh_console::output::ago;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row, Table, TableState},
};

use crate::{arguments::GroupBy, columns, groups::Group, plain_output::why_empty, screen_state::Screen};

/// Age from which a row counts as stale, after three missing reports.
const OLD_MS: u64 = 30_000;

/// Draws the screen.
pub(crate) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let [head, table, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(vec![title(screen), state(screen)]), head);
    match screen.has_endpoints {
        true => draw_endpoints(frame, screen, table),
        false => draw_groups(frame, screen, table),
    }
    frame.render_widget(Paragraph::new(keys(screen)).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn title(screen: &Screen) -> Line<'_> {
    let mut spans = vec![Span::styled("fairmesh top  ", Style::new().add_modifier(Modifier::BOLD))];
    for by in GroupBy::ALL {
        let is_shown = by == screen.by && !screen.has_endpoints;
        let style = if is_shown { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        spans.push(Span::styled(format!(" {} ", by.title()), style));
    }
    if let Some(service) = screen.looked_at() {
        spans.push(Span::raw(format!("  {service}")));
    }
    Line::from(spans)
}

/// Returns the status line: the kind of rows, and which data is missing.
fn state(screen: &Screen) -> Line<'_> {
    let snapshot = &screen.snapshot;
    let mut text = format!(
        "sorted by {}{}; history begins {} ago",
        screen.sort.title(),
        if screen.is_reversed { ", reversed" } else { "" },
        ago(snapshot.history_ms)
    );
    if !screen.filter.is_empty() || screen.is_filtering {
        text += &format!("; filter: {}{}", screen.filter, if screen.is_filtering { "_" } else { "" });
    }
    if snapshot.not_shown > 0 {
        text += &format!("; {} paths with fewer calls are missing", snapshot.not_shown);
    }
    match &screen.problem {
        Some(problem) => {
            let text = format!("as of {} ago: {problem}", ago(screen.stale_ms));
            Line::styled(text, Style::new().fg(Color::Red))
        }
        None => Line::raw(text),
    }
}

fn keys(screen: &Screen) -> &'static str {
    match (screen.is_filtering, screen.service.is_some()) {
        (true, _) => "Enter: keep the filter   Esc: clear it",
        (_, true) => "Esc back   Tab view   e endpoints   s sort   r reverse   / filter   q quit",
        (_, false) => "Enter look into   Tab view   s sort   r reverse   / filter   q quit",
    }
}

fn draw_groups(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let groups = screen.groups();
    if groups.is_empty() {
        return frame.render_widget(Paragraph::new(why_empty(screen.by, screen.snapshot.history_ms)), area);
    }
    let rows: Vec<Vec<String>> = groups.iter().map(|group| columns::cells(screen.by, group)).collect();
    let names = screen.by.headings().len();
    let styled = rows.iter().zip(&groups).map(|(cells, group)| {
        let cells = cells.iter().enumerate().map(|(at, cell)| aligned(cell, at >= names));
        Row::new(cells).style(style(group))
    });
    draw_table(frame, (columns::headings(screen.by), &rows, names), styled, (screen.selected, area));
}

fn draw_endpoints(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let rows: Vec<Vec<String>> = screen.snapshot.endpoints.iter().map(|row| row.to_vec()).collect();
    let cells = rows.iter().map(|row| Row::new(row.clone()));
    let head = vec!["INSTANCE", "REGION", "STATE"];
    draw_table(frame, (head, &rows, 3), cells, (screen.selected, area));
}

/// Draws a table: its headings, their texts and the number of name columns; its rows; the selected row and the area.
fn draw_table<'a>(
    frame: &mut Frame<'_>,
    (head, texts, names): (Vec<&'static str>, &[Vec<String>], usize),
    rows: impl Iterator<Item = Row<'a>>,
    (selected, area): (usize, Rect),
) {
    let widths = head.iter().enumerate().map(|(at, heading)| {
        let longest = texts.iter().filter_map(|row| Some(row.get(at)?.chars().count())).max();
        let width = longest.unwrap_or_default().max(heading.len());
        Constraint::Length(u16::try_from(width.min(60)).unwrap_or(60))
    });
    let head = head.iter().enumerate().map(|(at, heading)| aligned(heading, at >= names));
    let table = Table::new(rows, widths.collect::<Vec<_>>())
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(2)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn aligned(text: &str, is_number: bool) -> Cell<'static> {
    let line = Line::raw(text.to_owned());
    Cell::from(if is_number { line.right_aligned() } else { line })
}

/// Returns the style of a row: red for failures, dim without recent reports.
fn style(group: &Group) -> Style {
    let style = match group.sum.failed_part() {
        Some(part) if part >= 0.05 => Style::new().fg(Color::Red),
        Some(part) if part >= 0.01 => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    };
    if group.sum.age_ms >= OLD_MS { style.add_modifier(Modifier::DIM) } else { style }
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::{groups::tests::snapshot, snapshot::Snapshot};

    fn drawn(screen: &Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 8)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn top_screen_shows_services_by_call_rate() {
        let screen = Screen { snapshot: snapshot(), ..Screen::default() };
        let text = drawn(&screen);
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
        assert!(line("SERVICE").contains("CALLS/S"), "{text}");
        assert!(line("shop/cart").contains("112.0"), "{text}");
        assert!(line("shop/catalog").contains("1.25"), "{text}");
        assert!(text.find("shop/cart ") < text.find("shop/catalog"), "{text}");
        assert!(text.contains("history begins 60 s ago") || text.contains("history begins 1"), "{text}");
    }

    #[test]
    fn empty_top_screen_shows_reason_and_last_error() {
        let mut screen = Screen { snapshot: Snapshot::default(), ..Screen::default() };
        assert!(drawn(&screen).contains("no calls are reported"));
        (screen.problem, screen.stale_ms) = (Some("not reached".into()), 4_000);
        assert!(drawn(&screen).contains("ago: not reached"));
    }

    #[test]
    fn top_screen_shows_endpoints_of_service() {
        let mut screen = Screen { snapshot: snapshot(), has_endpoints: true, ..Screen::default() };
        screen.service = Some(("shop/cart".into(), GroupBy::Services));
        screen.snapshot.endpoints = vec![["cart-1".into(), "eu".into(), "draining".into()]];
        let text = drawn(&screen);
        assert!(text.contains("cart-1") && text.contains("draining"), "{text}");
    }
}
