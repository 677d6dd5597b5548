use fairmesh_model::Region;

use super::{Explanation, Upstream};
use crate::{
    Ask, Headers, Reach, RequestView,
    witness::{Notes, Witness},
};

pub(super) fn explain<H: Headers + ?Sized>(
    upstream: &Upstream,
    request: &RequestView<'_, H>,
    ask: &Ask<'_>,
    now: u64,
    seed: u64,
) -> Explanation {
    let mut notes = Notes { upstream, now, steps: Vec::new() };
    let target = upstream.decide_route(request, seed, &mut notes).target;
    let picked = (*target == upstream.name).then(|| upstream.decide(ask, now, seed, &mut notes));
    Explanation { steps: notes.steps, target: target.clone(), picked }
}

pub(super) fn explain_pick(upstream: &Upstream, ask: &Ask<'_>, now: u64, seed: u64) -> Explanation {
    let mut notes = Notes { upstream, now, steps: Vec::new() };
    let picked = upstream.decide(ask, now, seed, &mut notes);
    Explanation { steps: notes.steps, target: upstream.name.clone(), picked: Some(picked) }
}

impl Upstream {
    /// Writes down how far each region with an endpoint is.
    #[inline]
    pub(super) fn note_regions<W: Witness>(&self, witness: &mut W) {
        witness.note("region", || {
            let home = self.horizon.home();
            let regions: Vec<_> =
                self.horizon.regions().map(|(region, reach)| describe(region, reach, home)).collect();
            if regions.is_empty() { "none has an endpoint".to_owned() } else { regions.join("; ") }
        });
    }

    /// Writes down which ring is looked at.
    #[inline]
    pub(super) fn note_rank<W: Witness>(&self, rank: u32, witness: &mut W) {
        witness.note("region", || format!("candidates from {}", self.horizon.describe(rank)));
    }
}

fn describe(region: &Region, reach: &Reach, home: &Region) -> String {
    let distance = match reach.round_trip {
        _ if region == home => "here (0 ms)".to_owned(),
        Some(rtt) => format!("{rtt:?} away"),
        None => "at an unknown distance".to_owned(),
    };
    let ring = match reach.ring {
        Some(ring) => format!("ring {ring}"),
        None => "not allowed by the policy".to_owned(),
    };
    let draining = if reach.draining { ", draining, so after all others" } else { "" };
    format!("{region} is {distance}: {ring}{draining}")
}
