//! Dynamic time warping.

/// A path through a matrix of tokens and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The row of each step, never decreasing.
    pub rows: Vec<usize>,
    /// The column of each step, never decreasing.
    pub columns: Vec<usize>,
}

impl Path {
    /// The column at which each row begins.
    pub fn starts(&self) -> Vec<usize> {
        let mut starts = Vec::new();
        for (place, (row, column)) in self.rows.iter().zip(&self.columns).enumerate() {
            if place == 0 || self.rows[place - 1] != *row {
                starts.push(*column);
            }
        }
        starts
    }
}

/// The direction from which a place of the matrix is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Both,
    Row,
    Column,
}

/// The path from the first to the last place of `weights`, `[rows, columns]`, along which the weights are largest in sum.
pub fn warp(weights: &[f32], columns: usize) -> Path {
    let rows = weights.len().checked_div(columns).unwrap_or(0);
    if rows == 0 {
        return Path { rows: Vec::new(), columns: Vec::new() };
    }
    let width = columns + 1;
    let mut from = vec![From::Column; (rows + 1) * width];
    // Costs of the row before and of this one.
    let (mut above, mut cost) = (vec![f64::INFINITY; width], vec![f64::INFINITY; width]);
    above[0] = 0.0;
    for row in 1..=rows {
        cost[0] = f64::INFINITY;
        for column in 1..=columns {
            let (both, by_row, by_column) = (above[column - 1], above[column], cost[column - 1]);
            let (least, way) = if both < by_row && both < by_column {
                (both, From::Both)
            } else if by_row < both && by_row < by_column {
                (by_row, From::Row)
            } else {
                (by_column, From::Column)
            };
            cost[column] = least - f64::from(weights[(row - 1) * columns + column - 1]);
            from[row * width + column] = way;
        }
        std::mem::swap(&mut above, &mut cost);
    }
    let (mut row, mut column) = (rows, columns);
    let mut path = Path { rows: Vec::new(), columns: Vec::new() };
    while row > 0 && column > 0 {
        path.rows.push(row - 1);
        path.columns.push(column - 1);
        match from[row * width + column] {
            // Along the first row only columns are left, and along the first column only rows.
            _ if row == 1 && column == 1 => break,
            From::Both => (row, column) = (row - 1, column - 1),
            From::Row => row -= 1,
            From::Column => column -= 1,
        }
    }
    path.rows.reverse();
    path.columns.reverse();
    path
}
