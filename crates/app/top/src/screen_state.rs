//! State of the display and how keys change it. Independent of the terminal.

use crate::{
    TopArgs,
    arguments::{GroupBy, SortBy},
    groups::{self, Group},
    snapshot::Snapshot,
};

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    pub(crate) snapshot: Snapshot,
    pub(crate) by: GroupBy,
    pub(crate) sort: SortBy,
    pub(crate) is_reversed: bool,
    pub(crate) filter: String,
    /// Whether key presses go to the filter.
    pub(crate) is_filtering: bool,
    /// The inspected service, with the view from which it was selected.
    pub(crate) service: Option<(String, GroupBy)>,
    /// Whether the endpoints of the service are shown instead of its calls.
    pub(crate) has_endpoints: bool,
    pub(crate) selected: usize,
    /// Reason why the last request failed, if it did, and the time since the last snapshot.
    pub(crate) problem: Option<String>,
    pub(crate) stale_ms: u64,
    pub(crate) has_ended: bool,
}

impl Screen {
    pub(crate) fn new(args: &TopArgs, snapshot: Snapshot) -> Self {
        Self {
            snapshot,
            by: args.by,
            sort: args.sort,
            filter: args.filter.clone().unwrap_or_default(),
            ..Self::default()
        }
    }

    /// The groups in display order.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let service = self.service.as_ref().map(|(service, _)| service.as_str());
        let mut groups = groups::groups(&self.snapshot, self.by, service);
        groups::filter(&mut groups, &self.filter);
        groups::sort(&mut groups, self.sort, self.is_reversed);
        groups
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        if self.has_endpoints { self.snapshot.endpoints.len() } else { self.groups().len() }
    }

    /// The service whose endpoints are to be requested, if any.
    pub(crate) fn looked_at(&self) -> Option<&str> {
        self.service.as_ref().map(|(service, _)| service.as_str())
    }

    /// Shows a newer snapshot. The selection stays on its row.
    pub(crate) fn update(&mut self, snapshot: Snapshot) {
        let selected = self.groups().into_iter().nth(self.selected).map(|group| group.names);
        self.snapshot = snapshot;
        (self.problem, self.stale_ms) = (None, 0);
        let position = self.groups().iter().position(|group| Some(&group.names) == selected.as_ref());
        self.select(position.unwrap_or(self.selected));
    }

    /// Switches to another view of the same calls.
    pub(crate) fn show(&mut self, by: GroupBy) {
        (self.by, self.has_endpoints, self.selected) = (by, false, 0);
    }

    pub(crate) fn select(&mut self, row: usize) {
        self.selected = row.min(self.len().saturating_sub(1));
    }

    /// Inspects the service of the selected row.
    pub(crate) fn drill_down(&mut self) {
        if self.service.is_some() {
            return;
        }
        let Some(group) = self.groups().into_iter().nth(self.selected) else { return };
        let heading = self.by.headings().iter().position(|heading| *heading == "SERVICE");
        let Some(service) = heading.and_then(|at| group.names.get(at).cloned()) else { return };
        self.service = Some((service, self.by));
        self.filter.clear();
        self.show(GroupBy::Pairs);
    }

    /// Goes back: leaves the filter, the service, or the program.
    pub(crate) fn back(&mut self) {
        if !self.filter.is_empty() {
            self.filter.clear();
        } else if let Some((_, by)) = self.service.take() {
            self.show(by);
        } else {
            self.has_ended = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::snapshot;

    #[test]
    fn top_drills_down_into_service_and_back() {
        let mut screen = Screen { snapshot: snapshot(), ..Screen::default() };
        screen.select(9);
        assert_eq!(screen.selected, 1, "the last row");
        screen.drill_down();
        assert_eq!((screen.looked_at(), screen.by), (Some("shop/catalog"), GroupBy::Pairs));
        assert_eq!(screen.groups().len(), 1);
        screen.drill_down();
        assert_eq!(screen.looked_at(), Some("shop/catalog"));
        screen.back();
        assert_eq!((screen.looked_at(), screen.by, screen.has_ended), (None, GroupBy::Services, false));
        screen.back();
        assert!(screen.has_ended);
    }

    #[test]
    fn top_selection_stays_on_its_row_after_update() {
        let mut screen = Screen { snapshot: snapshot(), selected: 1, ..Screen::default() };
        let mut newer = snapshot();
        newer.rows[3].counts = newer.rows[3].counts.clone().with_totals([100_000, 0, 0, 0, 0]);
        screen.update(newer);
        assert_eq!((screen.groups()[0].names[0].as_str(), screen.selected), ("shop/catalog", 0));
    }
}
