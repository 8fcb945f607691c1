//! The skew of every KV head: an orthogonal matrix that rotates queries and keys so that their
//! first columns account for most of their products.
//!
//! A product of two heads is a sum over any orthonormal directions. Its size along one of them is,
//! on average, the root of the product of the second moments of queries and keys along it, written
//! `s_q * s_k`. The directions are the principal ones of the queries that share the KV head
//! (InfiniGen: the right singular vectors of Q), with the largest `s_q * s_k` first. The component
//! that all keys have in common is ignored: it adds the same to every score of a query, which
//! cancels in the softmax.

use nalgebra::{DMatrix, SymmetricEigen};

/// First columns of the skew of every KV head of every layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Skew {
    /// `[layer, kv head, head_dim, columns]`.
    matrices: Vec<f32>,
    layer_len: usize,
}

impl Skew {
    /// Creates the skew from heads in the order of layers, `[head_dim, columns]` each, `kv_heads`
    /// per layer.
    pub(crate) fn new(kv_heads: usize, of_heads: &[Vec<f32>]) -> Skew {
        let layer_len = kv_heads * of_heads.first().map_or(0, Vec::len);
        Skew { matrices: of_heads.concat(), layer_len }
    }

    /// Returns the matrices of a layer, `[kv head, head_dim, columns]`.
    pub fn layer(&self, layer: usize) -> &[f32] {
        &self.matrices[layer * self.layer_len..][..self.layer_len]
    }

    /// Returns the matrix of a KV head of a layer.
    pub fn head(&self, layer: usize, kv_heads: usize, kv_head: usize) -> &[f32] {
        let len = self.layer_len / kv_heads;
        &self.layer(layer)[kv_head * len..][..len]
    }
}

/// Second moments of the queries and keys of one KV head.
#[derive(Debug, Clone)]
pub(crate) struct Moments {
    queries: DMatrix<f64>,
    keys: DMatrix<f64>,
    key_sum: Vec<f64>,
    key_count: usize,
}

impl Moments {
    pub(crate) fn new(head_dim: usize) -> Moments {
        let none = DMatrix::zeros(head_dim, head_dim);
        let key_sum = vec![0.0; head_dim];
        Moments { queries: none.clone(), keys: none, key_sum, key_count: 0 }
    }

    pub(crate) fn add_query(&mut self, query: &[f32]) {
        add_square(&mut self.queries, query);
    }

    pub(crate) fn add_key(&mut self, key: &[f32]) {
        add_square(&mut self.keys, key);
        self.key_sum.iter_mut().zip(key).for_each(|(sum, element)| *sum += f64::from(*element));
        self.key_count += 1;
    }

    /// Returns the moments of the same queries and keys at their positions and additionally shifted
    /// by each of `shifts` positions: from one position to the next, rope rotates a pair of
    /// elements by its frequency, in radians.
    pub(crate) fn shifted(&self, frequencies: &[f32], shifts: &[usize]) -> Moments {
        let mut all = self.clone();
        for shift in shifts {
            let mut turned = self.clone();
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (*shift as f64 * f64::from(*frequency)).sin_cos();
                let (a, b) = (pair, pair + frequencies.len());
                let turn = |x: f64, y: f64| (x * cos - y * sin, y * cos + x * sin);
                for matrix in [&mut turned.queries, &mut turned.keys] {
                    for i in 0..matrix.nrows() {
                        (matrix[(a, i)], matrix[(b, i)]) = turn(matrix[(a, i)], matrix[(b, i)]);
                    }
                    for i in 0..matrix.nrows() {
                        (matrix[(i, a)], matrix[(i, b)]) = turn(matrix[(i, a)], matrix[(i, b)]);
                    }
                }
                let sum = &mut turned.key_sum;
                (sum[a], sum[b]) = turn(sum[a], sum[b]);
            }
            all.queries += turned.queries;
            all.keys += turned.keys;
            all.key_sum.iter_mut().zip(turned.key_sum).for_each(|(all, sum)| *all += sum);
            all.key_count += turned.key_count;
        }
        all
    }

    /// Returns the first columns of the skew, `[head_dim, columns]`.
    pub(crate) fn skew(&self, columns: usize) -> Vec<f32> {
        let head_dim = self.key_sum.len();
        let SymmetricEigen { eigenvectors, eigenvalues } =
            SymmetricEigen::new(self.queries.clone());
        let count = (self.key_count as f64).max(1.0);
        let weight = |direction: usize| {
            let along = eigenvectors.column(direction);
            let mean: f64 =
                along.iter().zip(&self.key_sum).map(|(a, b)| a * b).sum::<f64>() / count;
            let square = (&self.keys * along).dot(&along) / count;
            eigenvalues[direction].max(0.0) * (square - mean * mean).max(0.0)
        };
        let weights: Vec<f64> = (0..head_dim).map(weight).collect();
        let mut order: Vec<usize> = (0..head_dim).collect();
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
        // Columns beyond the number of a head's elements are zero.
        let element = |row: usize, column: usize| {
            order.get(column).map_or(0.0, |direction| eigenvectors[(row, *direction)] as f32)
        };
        (0..head_dim)
            .flat_map(|row| (0..columns).map(move |c| (row, c)))
            .map(|(r, c)| element(r, c))
            .collect()
    }
}

/// Adds the outer product of a vector with itself.
fn add_square(to: &mut DMatrix<f64>, vector: &[f32]) {
    for (mut column, factor) in to.column_iter_mut().zip(vector) {
        for (sum, element) in column.iter_mut().zip(vector) {
            *sum += f64::from(*element) * f64::from(*factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Moments;

    #[test]
    fn columns_are_orthonormal_and_the_first_say_most() {
        // Queries and keys vary mostly along one direction, and keys have another one in common.
        let mut moments = Moments::new(8);
        let mut state = 3u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let strong = [0.5f32, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0];
        for _ in 0..200 {
            let (a, b) = (10.0 * random(), 6.0 * random());
            let query: Vec<f32> = strong.iter().map(|s| a * s + random()).collect();
            let mut key: Vec<f32> = strong.iter().map(|s| b * s + 0.1 * random()).collect();
            key[7] += 50.0;
            moments.add_query(&query);
            moments.add_key(&key);
        }
        let skew = moments.skew(8);
        let column = |c: usize| -> Vec<f32> { (0..8).map(|row| skew[row * 8 + c]).collect() };
        let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        for a in 0..8 {
            for b in 0..8 {
                let expected = if a == b { 1.0 } else { 0.0 };
                assert!((dot(&column(a), &column(b)) - expected).abs() < 1e-5, "{a} {b}");
            }
        }
        assert!(dot(&column(0), &strong).abs() > 0.99, "{:?}", column(0));
    }

    #[test]
    fn shifted_moments_are_those_of_turned_queries_and_keys() {
        let frequencies = [0.7f32, 0.01, 0.0003];
        let turned = |head: &[f32], shift: usize| -> Vec<f32> {
            let mut out = head.to_vec();
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (shift as f64 * f64::from(*frequency)).sin_cos();
                let (a, b) = (f64::from(head[pair]), f64::from(head[pair + 3]));
                out[pair] = (a * cos - b * sin) as f32;
                out[pair + 3] = (b * cos + a * sin) as f32;
            }
            out
        };
        // The first six of the eight elements of a head are rotated.
        let head = |seed: usize| -> Vec<f32> {
            (0..8).map(|i| ((seed * 13 + i * 5) % 11) as f32 - 4.0).collect()
        };
        let (mut moments, mut expected) = (Moments::new(8), Moments::new(8));
        for seed in 0..20 {
            moments.add_query(&head(seed));
            moments.add_key(&head(seed + 40));
            for shift in [0, 5, 900] {
                expected.add_query(&turned(&head(seed), shift));
                expected.add_key(&turned(&head(seed + 40), shift));
            }
        }
        let shifted = moments.shifted(&frequencies, &[5, 900]);
        assert_eq!(shifted.key_count, expected.key_count);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-2, "{a} {b}");
        for (a, b) in shifted.key_sum.iter().zip(&expected.key_sum) {
            near(*a, *b);
        }
        for (shifted, expected) in
            [(&shifted.queries, &expected.queries), (&shifted.keys, &expected.keys)]
        {
            shifted.iter().zip(expected.iter()).for_each(|(a, b)| near(*a, *b));
        }
    }
}
