//! Windows over spatial axes, for convolution and pooling: strides, dilations, padding, sizes.

use super::OpView;
use crate::OpError;

/// The constant options of a convolution or pooling, by spatial axis.
pub struct Windows {
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
    pub(super) pad: Vec<[usize; 2]>,
    pub(super) pad_type: String,
    /// Whether a last window that is not full counts.
    ceil: bool,
}

/// The sizes that the constant vector `name` gives, each at least `least`; `default` if it is not
/// given.
///
/// # Errors
/// When there are not `count` of them.
pub(super) fn sizes(
    op: &OpView<'_>,
    name: &str,
    count: usize,
    default: usize,
    least: usize,
) -> Result<Vec<usize>, OpError> {
    let Some(given) = op.ints(name)? else { return Ok(vec![default; count]) };
    let sizes: Option<Vec<usize>> =
        given.iter().map(|&v| usize::try_from(v).ok().filter(|&v| v >= least)).collect();
    sizes.filter(|s| s.len() == count).ok_or_else(|| {
        OpError::invalid(format!("{name} {given:?} are not {count} numbers of at least {least}"))
    })
}

impl Windows {
    /// The options `strides`, `dilations`, `pad`, `pad_type` and `ceil_mode` of `op`, whose argument has
    /// `axes` spatial axes.
    ///
    /// # Errors
    /// When one is not constant or does not fit.
    pub fn of(op: &OpView<'_>, axes: usize) -> Result<Self, OpError> {
        let pad = sizes(op, "pad", 2 * axes, 0, 0)?.as_chunks::<2>().0.to_vec();
        let pad_type = op.str("pad_type")?.unwrap_or("valid").to_owned();
        if !["valid", "custom", "same", "same_lower"].contains(&&*pad_type) {
            return Err(OpError::invalid(format!("pad_type \"{pad_type}\" is unknown")));
        }
        let ceil = op.bool_or("ceil_mode", false)?;
        if ceil && (pad_type.starts_with("same") || pad.iter().any(|[a, b]| a != b)) {
            return Err(OpError::invalid("ceil_mode with padding that is not symmetric"));
        }
        Ok(Windows {
            strides: sizes(op, "strides", axes, 1, 1)?,
            dilations: sizes(op, "dilations", axes, 1, 1)?,
            pad,
            pad_type,
            ceil,
        })
    }

    /// Padding before and behind the axis and number of windows, for `size` elements and a window
    /// of `kernel`; `None` if it does not fit.
    pub(super) fn axis(&self, axis: usize, size: usize, kernel: usize) -> Option<Axis> {
        let (stride, dilation) = (self.strides[axis], self.dilations[axis]);
        let reach = kernel.checked_sub(1)?.checked_mul(dilation)?;
        let [before, after] = match &*self.pad_type {
            "valid" => [0, 0],
            "custom" => self.pad[axis],
            same => {
                let out = size.div_ceil(stride);
                let total = (out.saturating_sub(1).checked_mul(stride)?)
                    .checked_add(reach + 1)?
                    .saturating_sub(size);
                let less = total / 2;
                if same == "same" { [less, total - less] } else { [total - less, less] }
            }
        };
        let padded = size.checked_add(before)?.checked_add(after)?;
        let span = padded.checked_sub(reach + 1)?;
        let mut out = span / stride + 1;
        if self.ceil {
            out = span.div_ceil(stride) + 1;
            // The last window must not start behind the elements, if there is padding.
            if (out - 1) * stride >= size + before && before > 0 {
                out -= 1;
            }
        }
        Some(Axis { size, kernel, out, before, after, stride, dilation })
    }

    /// Three spatial axes, the missing ones in front single, and the sizes of the results; `None` if
    /// one does not fit.
    pub fn spatial(&self, sizes: &[usize], kernels: &[usize]) -> Option<([Axis; 3], Vec<usize>)> {
        let first = 3usize.checked_sub(sizes.len())?;
        if [kernels.len(), self.strides.len()] != [sizes.len(); 2] {
            return None;
        }
        let mut axes = [Axis::SINGLE; 3];
        for (i, (&size, &kernel)) in sizes.iter().zip(kernels).enumerate() {
            axes[first + i] = self.axis(i, size, kernel)?;
        }
        Some((axes, axes[first..].iter().map(|a| a.out).collect()))
    }

    /// Whether windows of `kernel` elements leave the axis, whatever its size, as it is.
    pub(super) fn keeps(&self, axis: usize, kernel: usize) -> bool {
        let padded = self.pad_type == "custom" && self.pad[axis] != [0, 0];
        kernel == 1 && self.strides[axis] == 1 && !padded
    }
}

/// One spatial axis: window `o` has the elements `o * stride + k * dilation - before`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Elements.
    pub size: usize,
    /// Elements of a window.
    pub kernel: usize,
    /// Windows.
    pub out: usize,
    /// Padding in front.
    pub before: usize,
    /// Padding behind.
    pub after: usize,
    /// Distance of neighbouring windows.
    pub stride: usize,
    /// Distance of a window's elements.
    pub dilation: usize,
}

impl Axis {
    /// An axis of one element and one window.
    pub(super) const SINGLE: Axis =
        Axis { size: 1, kernel: 1, out: 1, before: 0, after: 0, stride: 1, dilation: 1 };

    /// Whether the axis has one element, in one window without padding.
    pub(super) fn is_one(&self) -> bool {
        [self.size, self.kernel, self.out] == [1; 3] && self.before + self.after == 0
    }

    /// The windows whose place `k` is an element, not padding: the first, how many, and the element
    /// of the first.
    pub(super) fn run(&self, k: usize) -> (usize, usize, usize) {
        let shift = k * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride);
        // Window `o` has element `o * stride + shift - before`, which must be below `size`.
        let end = (self.size + self.before)
            .checked_sub(shift)
            .map_or(0, |n| n.div_ceil(self.stride))
            .min(self.out);
        let count = end.saturating_sub(first);
        (first, count, (first * self.stride + shift).saturating_sub(self.before))
    }

    /// The elements of window `o`, and how many places of the window are elements or padding: a
    /// last window that is not full can reach beyond both. For windows without dilation.
    pub fn window(&self, o: usize) -> (std::ops::Range<usize>, usize) {
        let start = o * self.stride;
        let end = (start + self.kernel).min(self.before + self.size + self.after);
        let element = |at: usize| at.saturating_sub(self.before).min(self.size);
        (element(start)..element(end), end.saturating_sub(start))
    }
}
