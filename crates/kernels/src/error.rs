//! What a kernel can refuse at run time.

use tensor::DType;

/// Why a kernel cannot take what a file or a user handed in.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// No kernel reads weights of this type.
    #[error("weights of type {0} are not supported by the CPU kernels")]
    Unsupported(DType),
    /// Type, shape and byte length of a matrix disagree, or a row ends inside a block.
    #[error("a [{rows}, {cols}] matrix of {dtype} does not fit its {actual} bytes")]
    MatrixBytes {
        /// Element type.
        dtype: DType,
        /// Number of rows.
        rows: usize,
        /// Elements of a row.
        cols: usize,
        /// Bytes given.
        actual: usize,
    },
    /// A row that the table does not have was asked for.
    #[error("row {index} asked for at position {position}, but the table has {rows} rows")]
    RowIndex {
        /// Where in the list of indices.
        position: usize,
        /// The index asked for.
        index: i32,
        /// Rows of the table.
        rows: usize,
    },
    /// A target that the vocabulary does not have.
    #[error("target {target} of row {row} is not in the vocabulary of {vocab}")]
    Target {
        /// Which row.
        row: usize,
        /// Its target.
        target: i32,
        /// Size of the vocabulary.
        vocab: usize,
    },
}
