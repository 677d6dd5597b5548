use fairmesh_model::RegionDrain;
use fairmesh_planner::DrainWait;

/// The text of a drain that has arrived, which all programs follow.
pub(super) const DONE: &str = "done";

/// What a drain does, for operators.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DrainState {
    /// The drain as the last round found it.
    drain: RegionDrain,
    pub(super) text: String,
    pub(super) is_held: bool,
    /// Calls that no drain moves out of the region, for people.
    pub(super) staying: Vec<String>,
    /// The services whose calls it moves, once a plan has found them.
    pub(super) services: Option<u32>,
}

impl DrainState {
    /// The state of a drain that waits, or that does what the text says.
    pub(super) fn of(drain: &RegionDrain, DrainWait { text, is_held }: DrainWait) -> Self {
        Self { drain: *drain, text, is_held, staying: Vec::new(), services: None }
    }

    /// Whether this is the state of a drain that keeps the same share, and that is done by it.
    pub(super) fn is_done_of(&self, drain: &RegionDrain) -> bool {
        self.drain == *drain && self.text == DONE
    }

    /// Whether this is the state of a drain, which may have made a step since: one that was begun again has another schedule.
    pub(super) fn is_of(&self, drain: &RegionDrain) -> bool {
        RegionDrain { keep: drain.keep, ..self.drain } == *drain
    }
}
