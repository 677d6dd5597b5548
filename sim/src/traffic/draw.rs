//! Where a table sends a call. The router takes this over once it has tables.

use fairmesh_model::arith::{Generator, hash_text, mix_pair};
use fairmesh_te::{Tables, WHOLE};

use crate::{sampling::unit, scenario::TrafficClass};

/// The draw of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drawn {
    /// The region whose servers should get it.
    Region(u16),
    /// The call fails at once.
    Dropped,
}

/// Draws the region of a call of this source and class. A call is drawn once: its retries go to the same region.
pub(crate) fn draw_region(tables: &Tables, source: u16, class: usize, seed: u64) -> Drawn {
    let number = Generator::new(mix_pair(seed, hash_text("region"))).below(u64::from(WHOLE));
    let drawn = tables.of(usize::from(source), class).draw(number as u32);
    drawn.map_or(Drawn::Dropped, |region| Drawn::Region(region as u16))
}

/// Draws the class of a call by the shares of classes.
pub(crate) fn draw_class(classes: &[TrafficClass], seed: u64) -> usize {
    let total: f64 = classes.iter().map(|class| class.share).sum();
    let mut left = unit(&mut Generator::new(mix_pair(seed, hash_text("class")))) * total;
    let found = classes.iter().position(|class| {
        left -= class.share;
        left < 0.0
    });
    found.unwrap_or(classes.len() - 1)
}
