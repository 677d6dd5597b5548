//! Actions of keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::{
    arguments::{GroupBy, SortBy},
    screen_state::Screen,
};

/// Number of rows in a page.
const PAGE: usize = 20;

/// Applies a key press to the screen.
pub(crate) fn press(screen: &mut Screen, key: KeyEvent) {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        screen.has_ended |= key.code == KeyCode::Char('c');
        return;
    }
    if screen.is_filtering {
        return write_filter(screen, key.code);
    }
    match key.code {
        KeyCode::Char('q') => screen.has_ended = true,
        KeyCode::Esc | KeyCode::Backspace => screen.back(),
        KeyCode::Enter => screen.drill_down(),
        KeyCode::Up | KeyCode::Char('k') => screen.select(screen.selected.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => screen.select(screen.selected + 1),
        KeyCode::PageUp => screen.select(screen.selected.saturating_sub(PAGE)),
        KeyCode::PageDown => screen.select(screen.selected + PAGE),
        KeyCode::Home => screen.select(0),
        KeyCode::End => screen.select(usize::MAX),
        KeyCode::Char('/') => screen.is_filtering = true,
        KeyCode::Char('s') => screen.sort = after(&SortBy::ALL, screen.sort),
        KeyCode::Char('r') => screen.is_reversed = !screen.is_reversed,
        KeyCode::Tab => screen.show(after(&GroupBy::ALL, screen.by)),
        KeyCode::Char('e') if screen.service.is_some() => {
            (screen.has_endpoints, screen.selected) = (!screen.has_endpoints, 0);
        }
        KeyCode::Char(digit) => {
            let view =
                digit.to_digit(10).and_then(|digit| GroupBy::ALL.get((digit as usize).checked_sub(1)?));
            view.map(|by| screen.show(*by)).unwrap_or_default();
        }
        _ => {}
    }
}

fn write_filter(screen: &mut Screen, code: KeyCode) {
    match code {
        KeyCode::Enter => screen.is_filtering = false,
        KeyCode::Esc => {
            screen.is_filtering = false;
            screen.filter.clear();
        }
        KeyCode::Backspace => drop(screen.filter.pop()),
        KeyCode::Char(char) if !char.is_control() => screen.filter.push(char),
        _ => {}
    }
    screen.select(screen.selected);
}

/// The entry after `current`, wrapping around.
fn after<T: Copy + PartialEq>(all: &[T], current: T) -> T {
    let at = all.iter().position(|one| *one == current).map_or(0, |at| at + 1);
    all.get(at).or(all.first()).copied().unwrap_or(current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::snapshot;

    fn type_text(screen: &mut Screen, keys: &[KeyCode]) {
        keys.iter().for_each(|code| press(screen, KeyEvent::new(*code, KeyModifiers::NONE)));
    }

    #[test]
    fn keys_of_top_filter_sort_and_change_view() {
        let mut screen = Screen { snapshot: snapshot(), ..Screen::default() };
        type_text(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace]);
        type_text(&mut screen, &[KeyCode::Char('l'), KeyCode::Char('o'), KeyCode::Enter]);
        assert_eq!((screen.filter.as_str(), screen.groups().len(), screen.has_ended), ("lo", 1, false));
        type_text(&mut screen, &[KeyCode::Esc, KeyCode::Tab, KeyCode::Char('s'), KeyCode::Char('r')]);
        assert_eq!((screen.by, screen.sort, screen.is_reversed), (GroupBy::Pairs, SortBy::Failures, true));
        type_text(&mut screen, &[KeyCode::Char('5'), KeyCode::Tab, KeyCode::Enter, KeyCode::Char('e')]);
        assert_eq!((screen.by, screen.looked_at()), (GroupBy::Pairs, Some("shop/catalog")));
        assert!(screen.has_endpoints);
        press(&mut screen, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(screen.has_ended);
    }
}
