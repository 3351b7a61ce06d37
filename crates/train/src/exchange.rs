//! Processes that train one model together: the seam to what connects them, and their gradients in buckets.

use tensor::{Tensor, TensorError};

use crate::{Result, TrainError};

/// What connects the processes that train one model, each on its own part of every batch.
///
/// All of them call [`Exchange::start`], [`Exchange::finish`] and [`Exchange::sum`] in the same order and with the
/// same lengths, and all get the same bits. Where one fails the calls of the others fail too, or their programs end.
pub trait Exchange: Send + Sync {
    /// Which of them this process is, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn ranks(&self) -> usize;

    /// Most elements of a bucket, at least 1: 4 MB by default. Smaller ones cost more messages, larger ones begin later.
    fn bucket_len(&self) -> usize {
        1 << 20
    }

    /// Begins to add up `bucket` over all processes, element by element, and returns at once.
    ///
    /// # Errors
    /// When another process is gone.
    fn start(&self, bucket: Vec<f32>) -> Result<()>;

    /// Waits for the sums of the bucket that was started first of those not finished.
    ///
    /// # Errors
    /// When another process is gone, or none was started.
    fn finish(&self) -> Result<Vec<f32>>;

    /// Adds up `numbers` over all processes, element by element, and waits for that.
    ///
    /// # Errors
    /// When another process is gone.
    fn sum(&self, numbers: &mut [f64]) -> Result<()>;
}

/// The gradients of one process on their way to those of all: one stream in the order in which the backward pass
/// makes them, cut into buckets that are added up while the pass goes on.
pub(crate) struct Buckets<'a> {
    exchange: &'a dyn Exchange,
    /// The last bucket, which is not full.
    open: Vec<f32>,
    /// Parameters in the order of the stream.
    order: Vec<usize>,
}

impl<'a> Buckets<'a> {
    pub(crate) fn new(exchange: &'a dyn Exchange) -> Self {
        Buckets { exchange, open: Vec::new(), order: Vec::new() }
    }

    /// Takes the gradient of the parameter `number`, of which nothing is to be added any more.
    ///
    /// # Errors
    /// Those of [`Exchange::start`].
    pub(crate) fn push(&mut self, number: usize, mut values: &[f32]) -> Result<()> {
        self.order.push(number);
        let full = self.exchange.bucket_len();
        while !values.is_empty() {
            let room = full - self.open.len();
            self.open.reserve_exact(room);
            let (part, rest) = values.split_at(values.len().min(room));
            self.open.extend_from_slice(part);
            if self.open.len() == full {
                self.exchange.start(std::mem::take(&mut self.open))?;
            }
            values = rest;
        }
        Ok(())
    }

    /// Puts the sums over all processes in the place of this one's gradients.
    ///
    /// # Errors
    /// Those of the [`Exchange`], and when a tensor is not of `fp32`.
    pub(crate) fn finish(self, gradients: &mut [Tensor]) -> Result<()> {
        if !self.open.is_empty() {
            self.exchange.start(self.open)?;
        }
        let broken = |e: TensorError| TrainError::Invalid(format!("a gradient: {e}"));
        let (mut bucket, mut at) = (Vec::new(), 0);
        for number in self.order {
            let mut values = gradients[number].make_mut::<f32>().map_err(broken)?;
            while !values.is_empty() {
                if at == bucket.len() {
                    (bucket, at) = (self.exchange.finish()?, 0);
                }
                let (part, rest) = values.split_at_mut(values.len().min(bucket.len() - at));
                part.copy_from_slice(&bucket[at..at + part.len()]);
                at += part.len();
                values = rest;
            }
        }
        Ok(())
    }
}
