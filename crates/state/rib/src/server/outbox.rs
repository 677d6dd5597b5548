use std::collections::VecDeque;

use fairmesh_model::Prefix;
use fairmesh_wire::v1;
use prost::Message;

use super::messages::{self, Messages};

/// Size of pending refusals, in bytes, above which no more requests are read. Refused prefixes are not subscriptions,
/// so the limit on subscriptions does not bound them.
const MAX_REFUSED_BYTES: usize = 64 * 1024;

/// Messages that a watch has yet to send: the rest of the last update, then notices.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    update: Option<Messages>,
    /// At most one age update and one acknowledgement request, and any number of refusals.
    notices: VecDeque<v1::WatchResponse>,
    refused_bytes: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.update.is_none() && self.notices.is_empty()
    }

    /// Whether refusals must be sent before another request is read.
    pub(super) fn is_full(&self) -> bool {
        self.refused_bytes >= MAX_REFUSED_BYTES
    }

    /// Adds the update of a pull. All earlier messages must have been sent.
    pub(super) fn set_update(&mut self, update: Messages) {
        self.update = Some(update);
    }

    pub(super) fn notify(&mut self, notice: v1::WatchResponse) {
        self.notices.push_back(notice);
    }

    pub(super) fn refuse(&mut self, prefix: &Prefix, reason: String) {
        let refused = messages::refused(prefix, reason);
        self.refused_bytes += refused.encoded_len();
        self.notices.push_back(refused);
    }

    /// Takes the next message.
    pub(super) fn pop(&mut self) -> Option<v1::WatchResponse> {
        if let Some(message) = self.update.as_mut().and_then(Iterator::next) {
            return Some(message);
        }
        self.update = None;
        let notice = self.notices.pop_front();
        if self.notices.is_empty() {
            self.refused_bytes = 0;
        }
        notice
    }
}
