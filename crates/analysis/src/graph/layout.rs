//! Layered drawing of an acyclic graph: every edge leads down, over few others, in gentle curves.
//!
//! The method is Sugiyama's: ranks by longest path, order within ranks by the neighbours' mean place, and places as
//! near to the neighbours' mean as the order allows (isotonic regression, a rank at a time).

/// Free space between neighbours of a rank.
const GAP: f64 = 26.0;
/// Free space between ranks.
const RANK_GAP: f64 = 40.0;
/// Width of an edge that passes a rank.
const LANE: f64 = 8.0;
/// How often ranks are ordered, downwards and upwards.
const ORDERINGS: usize = 6;
/// How often places are chosen, downwards and upwards.
const PLACINGS: usize = 8;
/// How much more an edge's own straightness counts than a node's place.
const STRAIGHT: f64 = 4.0;

/// What is drawn: boxes by width and height, and edges from a box to one with a larger number or without edges into
/// it.
pub(super) struct Graph {
    pub(super) sizes: Vec<(f64, f64)>,
    pub(super) edges: Vec<(usize, usize)>,
}

/// Where everything is.
pub(super) struct Layout {
    /// Of each box the middle of its upper side.
    pub(super) places: Vec<(f64, f64)>,
    /// Of each edge the points it passes, from the lower side of a box to the upper side of another.
    pub(super) paths: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// The rank of each node: one more than the largest of those before it; what has none before it stands just above
/// the first it leads to. Edges are in order of their ends.
pub(super) fn ranks(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut ranks = vec![0; nodes];
    let mut sorted = edges.to_vec();
    sorted.sort_unstable_by_key(|&(from, to)| (to, from));
    let mut free = vec![true; nodes];
    for &(from, to) in &sorted {
        ranks[to] = ranks[to].max(ranks[from] + 1);
        free[to] = false;
    }
    let mut next = vec![usize::MAX; nodes];
    for &(from, to) in edges {
        next[from] = next[from].min(ranks[to]);
    }
    for i in (0..nodes).filter(|&i| free[i] && next[i] != usize::MAX) {
        ranks[i] = next[i].saturating_sub(1);
    }
    ranks
}

/// A box or a bend of an edge, with its neighbours in the ranks above and below.
struct Item {
    rank: usize,
    width: f64,
    above: Vec<usize>,
    below: Vec<usize>,
}

/// Draws the graph.
pub(super) fn layout(graph: &Graph) -> Layout {
    let ranks = ranks(graph.sizes.len(), &graph.edges);
    let mut items: Vec<Item> = graph
        .sizes
        .iter()
        .zip(&ranks)
        .map(|(size, &rank)| Item { rank, width: size.0, above: Vec::new(), below: Vec::new() })
        .collect();
    let boxes = items.len();
    let mut bends = Vec::new();
    for &(from, to) in &graph.edges {
        let (mut last, mut own) = (from, Vec::new());
        for rank in ranks[from] + 1..ranks[to] {
            items.push(Item { rank, width: LANE, above: vec![last], below: Vec::new() });
            let bend = items.len() - 1;
            items[last].below.push(bend);
            own.push(bend);
            last = bend;
        }
        items[last].below.push(to);
        items[to].above.push(last);
        bends.push(own);
    }
    let mut rows = vec![Vec::new(); ranks.iter().max().map_or(0, |r| r + 1)];
    items.iter().enumerate().for_each(|(i, item)| rows[item.rank].push(i));
    order(&items, &mut rows);
    let xs = place(&items, &rows, boxes);
    let mut height = 0.0;
    let mut rows_y = Vec::new();
    for row in &rows {
        let tallest = row.iter().filter(|&&i| i < boxes).map(|&i| graph.sizes[i].1);
        let tallest = tallest.fold(0.0, f64::max);
        rows_y.push((height, tallest));
        height += tallest + RANK_GAP;
    }
    let left = (0..items.len()).map(|i| xs[i] - items[i].width / 2.0).fold(f64::MAX, f64::min);
    let left = if items.is_empty() { 0.0 } else { left };
    let right = (0..items.len()).map(|i| xs[i] + items[i].width / 2.0).fold(left, f64::max);
    // A lower box of a row stands in its middle.
    let top = |i: usize| {
        let (y, tallest) = rows_y[items[i].rank];
        y + (tallest - graph.sizes[i].1) / 2.0
    };
    let places = (0..boxes).map(|i| (xs[i] - left, top(i))).collect();
    let paths = graph.edges.iter().zip(&bends).map(|(&(from, to), bends)| {
        let mut points = vec![(xs[from] - left, top(from) + graph.sizes[from].1)];
        for &bend in bends {
            let (y, tallest) = rows_y[items[bend].rank];
            points.extend([(xs[bend] - left, y), (xs[bend] - left, y + tallest)]);
        }
        points.push((xs[to] - left, top(to)));
        points
    });
    Layout {
        places,
        paths: paths.collect(),
        width: right - left,
        height: (height - RANK_GAP).max(0.0),
    }
}

/// Orders each row by the mean place of its items' neighbours, again and again in both directions.
fn order(items: &[Item], rows: &mut [Vec<usize>]) {
    let mut place = vec![0.0; items.len()];
    let note = |row: &[usize], place: &mut [f64]| {
        row.iter().enumerate().for_each(|(i, &item)| place[item] = i as f64);
    };
    rows.iter().for_each(|row| note(row, &mut place));
    for round in 0..ORDERINGS {
        let down = round % 2 == 0;
        for r in 0..rows.len() {
            let row = if down { r } else { rows.len() - 1 - r };
            let mut keyed: Vec<(f64, usize)> = rows[row]
                .iter()
                .map(|&i| {
                    let near = if down { &items[i].above } else { &items[i].below };
                    let sum: f64 = near.iter().map(|&n| place[n]).sum();
                    (if near.is_empty() { place[i] } else { sum / near.len() as f64 }, i)
                })
                .collect();
            keyed.sort_by(|x, y| x.0.total_cmp(&y.0));
            rows[row] = keyed.into_iter().map(|(_, i)| i).collect();
            note(&rows[row], &mut place);
        }
    }
}

/// The middles of all items: as near to those of their neighbours as the order and their widths allow.
fn place(items: &[Item], rows: &[Vec<usize>], boxes: usize) -> Vec<f64> {
    let mut xs = vec![0.0; items.len()];
    for row in rows {
        let mut x = 0.0;
        for &i in row {
            xs[i] = x + items[i].width / 2.0;
            x += items[i].width + GAP;
        }
        row.iter().for_each(|&i| xs[i] -= x / 2.0);
    }
    for round in 0..PLACINGS {
        let down = round % 2 == 0;
        for r in 0..rows.len() {
            let row = &rows[if down { r } else { rows.len() - 1 - r }];
            let wanted = |i: usize| {
                let near = if down { &items[i].above } else { &items[i].below };
                let sum: f64 = near.iter().map(|&n| xs[n]).sum();
                if near.is_empty() { (xs[i], 0.1) } else { (sum / near.len() as f64, 1.0) }
            };
            let weight = |i: usize| if i >= boxes { STRAIGHT } else { 1.0 };
            let mut offset = 0.0;
            let mut offsets = Vec::with_capacity(row.len());
            for (n, &i) in row.iter().enumerate() {
                if n > 0 {
                    offset += (items[row[n - 1]].width + items[i].width) / 2.0 + GAP;
                }
                offsets.push(offset);
            }
            let targets = row.iter().zip(&offsets).map(|(&i, offset)| {
                let (x, known) = wanted(i);
                (x - offset, known * weight(i))
            });
            let found = isotonic(targets);
            for ((&i, x), offset) in row.iter().zip(found).zip(&offsets) {
                xs[i] = x + offset;
            }
        }
    }
    xs
}

/// The growing sequence nearest to the targets in the sum of weighted squares.
fn isotonic(targets: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
    // Runs of one value: its mean, weight and length.
    let mut runs: Vec<(f64, f64, usize)> = Vec::new();
    for (x, weight) in targets {
        runs.push((x, weight, 1));
        while let [.., (x, a, n), (y, b, m)] = runs[..]
            && x > y
        {
            runs.truncate(runs.len() - 2);
            runs.push(((x * a + y * b) / (a + b), a + b, n + m));
        }
    }
    runs.into_iter().flat_map(|(x, _, n)| std::iter::repeat_n(x, n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_longest_paths_and_sources_stand_low() {
        // 0 → 2 → 3, 1 → 3.
        assert_eq!(ranks(4, &[(0, 2), (2, 3), (1, 3)]), [0, 1, 1, 2]);
        assert_eq!(ranks(1, &[]), [0]);
    }

    #[test]
    fn regression_grows_and_keeps_what_grows_already() {
        let even = |x: &[f64]| isotonic(x.iter().map(|&x| (x, 1.0)));
        assert_eq!(even(&[1.0, 2.0, 5.0]), [1.0, 2.0, 5.0]);
        assert_eq!(even(&[3.0, 1.0, 2.0]), [2.0, 2.0, 2.0]);
    }

    #[test]
    fn boxes_do_not_overlap_and_edges_lead_down() {
        let edges = vec![(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (0, 4)];
        let sizes = vec![(100.0, 40.0); 5];
        let drawn = layout(&Graph { sizes, edges });
        for i in 1..4 {
            for j in i + 1..4 {
                assert!((drawn.places[i].0 - drawn.places[j].0).abs() >= 100.0 + GAP - 1e-9);
            }
        }
        for path in &drawn.paths {
            assert!(path.windows(2).all(|w| w[0].1 <= w[1].1), "{path:?}");
        }
        assert!(
            drawn.places.iter().all(|p| p.0 >= 50.0 - 1e-9 && p.0 <= drawn.width - 50.0 + 1e-9)
        );
        assert_eq!(layout(&Graph { sizes: vec![], edges: vec![] }).height, 0.0);
    }
}
