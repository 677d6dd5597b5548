use fairmesh_model::UTILISATION_LEVELS;

/// Time over which utilisation is averaged, in milliseconds.
const AVERAGED_MS: f64 = 10_000.0;

/// Utilisation of one server, averaged over about ten seconds.
///
/// A control plane compares the servers of a region by it. Calls of a single second load a small server by chance:
/// one in ten would always seem overloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanUtilisation(Option<f64>);

impl MeanUtilisation {
    /// Takes the utilisation of the last interval, 1 for a server at its CPU limit. Returns the position of the mean
    /// in [`ServerRates::by_utilisation`].
    ///
    /// [`ServerRates::by_utilisation`]: fairmesh_model::ServerRates::by_utilisation
    pub fn observe(&mut self, utilisation: f64, elapsed_ms: u64) -> usize {
        let elapsed = elapsed_ms as f64;
        let mean = self.0.get_or_insert(utilisation);
        *mean += (utilisation - *mean) * elapsed / (elapsed + AVERAGED_MS);
        ((*mean * UTILISATION_LEVELS as f64) as usize).min(UTILISATION_LEVELS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_utilisation_ignores_single_seconds_and_follows_lasting_changes() {
        let mut mean = MeanUtilisation::default();
        assert_eq!(mean.observe(0.72, 1_000), 14, "the first reading counts whole");
        assert_eq!(mean.observe(1.0, 1_000), 14);
        let levels: Vec<usize> = (0..60).map(|_| mean.observe(1.2, 1_000)).collect();
        assert_eq!((levels[0], levels[59]), (15, UTILISATION_LEVELS - 1));
    }
}
