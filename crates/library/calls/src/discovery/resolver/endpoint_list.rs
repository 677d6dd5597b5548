use std::sync::Arc;

use fairmesh_model::Endpoint;

/// Maximum number of endpoints for which memory is reserved exactly. Many services have only one endpoint.
const EXACT_CAPACITY: usize = 4;

/// Endpoints ordered by key, in one slice as the router expects them.
#[derive(Debug, Default)]
pub(super) struct EndpointList {
    keys: Vec<Arc<str>>,
    list: Vec<Endpoint>,
}

impl EndpointList {
    pub(super) fn list(&self) -> &[Endpoint] {
        &self.list
    }

    pub(super) fn put(&mut self, key: &Arc<str>, endpoint: Endpoint) {
        match self.keys.binary_search(key) {
            Ok(at) => self.list[at] = endpoint,
            Err(at) => {
                if self.list.len() < EXACT_CAPACITY {
                    self.keys.reserve_exact(1);
                    self.list.reserve_exact(1);
                }
                self.keys.insert(at, Arc::clone(key));
                self.list.insert(at, endpoint);
            }
        }
    }

    pub(super) fn delete(&mut self, key: &str) {
        if let Ok(at) = self.keys.binary_search_by(|k| (**k).cmp(key)) {
            self.keys.remove(at);
            self.list.remove(at);
        }
    }

    pub(super) fn remove_all(&mut self, gone: impl Fn(&str) -> bool) {
        if !self.keys.iter().any(|key| gone(key)) {
            return;
        }
        let keys = std::mem::take(&mut self.keys);
        let list = std::mem::take(&mut self.list);
        let kept = keys.into_iter().zip(list).filter(|(key, _)| !gone(key));
        (self.keys, self.list) = kept.unzip();
    }
}
