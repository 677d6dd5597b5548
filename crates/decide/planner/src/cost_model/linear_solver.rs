/// Solves `matrix × x = right` of a symmetric positive definite matrix, row by row; `None` if it is singular.
///
/// Gauss elimination with the diagonal as pivots, which needs no exchange of rows for such matrices. At most 17 × 17, so a library
/// for linear algebra would be a dependency for thirty lines.
pub(super) fn solve(matrix: &[Vec<f64>], right: &[f64]) -> Option<Vec<f64>> {
    let size = right.len();
    let mut rows: Vec<Vec<f64>> =
        matrix.iter().zip(right).map(|(row, value)| [row.as_slice(), &[*value]].concat()).collect();
    for pivot in 0..size {
        let (done, rest) = rows.split_at_mut(pivot + 1);
        let row = &done[pivot];
        // Relative to what the diagonal was: what is left of a dependent column is rounding.
        if row[pivot] <= matrix[pivot][pivot].abs() * 1e-12 {
            return None;
        }
        for other in rest {
            let factor = other[pivot] / row[pivot];
            (pivot..=size).for_each(|column| other[column] -= factor * row[column]);
        }
    }
    let mut solution = vec![0.0; size];
    for index in (0..size).rev() {
        let known: f64 = (index + 1..size).map(|column| rows[index][column] * solution[column]).sum();
        solution[index] = (rows[index][size] - known) / rows[index][index];
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_systems_are_solved_and_singular_ones_refused() {
        let matrix = vec![vec![4.0, 1.0, 0.0], vec![1.0, 3.0, 1.0], vec![0.0, 1.0, 2.0]];
        let solution = solve(&matrix, &[6.0, 10.0, 8.0]).unwrap();
        for (value, expected) in solution.iter().zip([1.0, 2.0, 3.0]) {
            assert!((value - expected).abs() < 1e-12, "{solution:?}");
        }
        assert_eq!(solve(&[vec![1.0, 2.0], vec![2.0, 4.0]], &[1.0, 2.0]), None);
        assert_eq!(solve(&[], &[]), Some(Vec::new()));
    }
}
