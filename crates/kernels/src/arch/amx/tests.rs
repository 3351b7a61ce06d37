//! Carries out the instructions of the AMX routines one by one, as the manual says what they do; but sums are added in
//! one order for all, which whole numbers do not show.

use std::ffi::c_void;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::{Routine, computes, run_by};

/// A way to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The numbers of a pair are multiplied crosswise.
    Crosswise,
    /// The distance of rows is not used.
    NoStride,
    /// A configuration does not clear the registers, and a load leaves the bytes past its rows.
    Stale,
}

/// What of a processor the routines use.
struct Machine {
    fault: Fault,
    registers: [u64; 16],
    zero: bool,
    /// Rows and bytes of a row of each tile register, once configured.
    shapes: Option<[(usize, usize); 8]>,
    tiles: [[[u8; 64]; 16]; 8],
}

fn tile(r: Register) -> usize {
    assert!(r.is_tmm(), "{r:?} is no tile register");
    r.number()
}

fn bf16(bytes: &[u8]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
}

impl Machine {
    fn new(fault: Fault) -> Self {
        let tiles = [[[0xff; 64]; 16]; 8];
        Machine { fault, registers: [0; 16], zero: false, shapes: None, tiles }
    }

    fn get(&self, r: Register) -> u64 {
        if r == Register::None { 0 } else { self.registers[r.full_register().number()] }
    }

    fn set(&mut self, r: Register, value: u64) {
        use Register::{R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI};
        let free = [RAX, RCX, RDX, RSI, RDI, R8, R9, R10, R11];
        assert!(free.contains(&r), "{r:?} belongs to the caller, or is no whole register");
        self.registers[r.number()] = value;
    }

    fn address(&self, i: &Instruction, with_index: bool) -> u64 {
        let index = self.get(i.memory_index()) * u64::from(i.memory_index_scale());
        let base = self.get(i.memory_base()).wrapping_add(i.memory_displacement64());
        if with_index { base.wrapping_add(index) } else { base }
    }

    fn operand(&self, i: &Instruction, n: u32) -> u64 {
        match i.op_kind(n) {
            OpKind::Register => self.get(i.op_register(n)),
            // SAFETY: the routines are given addresses of values that are alive.
            OpKind::Memory => unsafe { (self.address(i, true) as *const u64).read() },
            _ => i.immediate(n),
        }
    }

    fn shape(&self, t: usize) -> (usize, usize) {
        self.shapes.expect("tiles are used after they are configured, before they are released")[t]
    }

    /// The rows of a tile in memory: base, and distance.
    fn rows(&self, i: &Instruction) -> impl Fn(usize) -> *mut u8 + use<> {
        assert_ne!(i.memory_index(), Register::None, "rows without a distance");
        let stride = self.get(i.memory_index()) * u64::from(i.memory_index_scale());
        let stride = if self.fault == Fault::NoStride { 64 } else { stride };
        let base = self.address(i, false);
        move |row| (base + row as u64 * stride) as *mut u8
    }

    fn configure(&mut self, at: *const u8) {
        // SAFETY: a configuration is 64 bytes.
        let bytes = unsafe { at.cast::<[u8; 64]>().read() };
        assert_eq!(bytes[..2], [1, 0], "palette and first row");
        assert!(bytes[2..16].iter().all(|&b| b == 0), "reserved bytes are set");
        assert!(bytes[32..48].iter().chain(&bytes[56..]).all(|&b| b == 0), "more than 8 tiles");
        self.shapes = Some(std::array::from_fn(|t| {
            let width = usize::from(u16::from_le_bytes([bytes[16 + 2 * t], bytes[17 + 2 * t]]));
            let rows = usize::from(bytes[48 + t]);
            assert!((1..=16).contains(&rows) && (1..=64).contains(&width), "{rows} x {width}");
            (rows, width)
        }));
        if self.fault != Fault::Stale {
            self.tiles = [[[0; 64]; 16]; 8];
        }
    }

    fn multiply(&mut self, out: usize, a: usize, b: usize) {
        let ((rows, width), (a_rows, a_width), (b_rows, b_width)) =
            (self.shape(out), self.shape(a), self.shape(b));
        // Else the processor refuses the instruction.
        assert!(rows == a_rows && width == b_width && a_width == 4 * b_rows && a_width % 4 == 0);
        for row in 0..rows {
            for n in (0..width).step_by(4) {
                let mut sum = f32::from_le_bytes(*self.tiles[out][row][n..].first_chunk().unwrap());
                for word in 0..a_width / 4 {
                    for half in 0..2 {
                        let other = if self.fault == Fault::Crosswise { 1 - half } else { half };
                        let x = bf16(&self.tiles[a][row][4 * word + 2 * half..]);
                        sum += x * bf16(&self.tiles[b][word][n + 2 * other..]);
                    }
                }
                self.tiles[out][row][n..n + 4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }

    /// Carries out `routine`; the number of instructions.
    fn call(&mut self, routine: Routine, argument: *const c_void) -> usize {
        self.registers[Register::RDI.number()] = argument.addr() as u64;
        let mut at = routine as *const u8;
        for count in 1.. {
            // SAFETY: an instruction has at most 15 bytes, and more code follows a routine.
            let code = unsafe { std::slice::from_raw_parts(at, 15) };
            let i = Decoder::with_ip(64, code, at.addr() as u64, DecoderOptions::NONE).decode();
            let mut next = i.next_ip();
            match i.mnemonic() {
                Mnemonic::Ret => return count,
                Mnemonic::Mov => self.set(i.op0_register(), self.operand(&i, 1)),
                Mnemonic::Lea => self.set(i.op0_register(), self.address(&i, true)),
                Mnemonic::Add => {
                    let sum = self.operand(&i, 0).wrapping_add(self.operand(&i, 1));
                    self.set(i.op0_register(), sum);
                    self.zero = sum == 0;
                }
                Mnemonic::Sub => {
                    let difference = self.operand(&i, 0).wrapping_sub(self.operand(&i, 1));
                    self.set(i.op0_register(), difference);
                    self.zero = difference == 0;
                }
                Mnemonic::Cmp => self.zero = self.operand(&i, 0) == self.operand(&i, 1),
                Mnemonic::Jmp => next = i.near_branch_target(),
                Mnemonic::Jne if self.zero => {}
                Mnemonic::Jne => next = i.near_branch_target(),
                Mnemonic::Ldtilecfg => self.configure(self.address(&i, true) as *const u8),
                Mnemonic::Tilerelease => self.shapes = None,
                Mnemonic::Tilezero => {
                    let t = tile(i.op0_register());
                    self.shape(t);
                    self.tiles[t] = [[0; 64]; 16];
                }
                Mnemonic::Tileloadd => {
                    let t = tile(i.op0_register());
                    let (row_of, (rows, width)) = (self.rows(&i), self.shape(t));
                    if self.fault != Fault::Stale {
                        self.tiles[t] = [[0; 64]; 16];
                    }
                    for row in 0..rows {
                        // SAFETY: `run_by` checked that operands have their rows.
                        let bytes = unsafe { std::slice::from_raw_parts(row_of(row), width) };
                        self.tiles[t][row][..width].copy_from_slice(bytes);
                    }
                }
                Mnemonic::Tilestored => {
                    let t = tile(i.op1_register());
                    let (row_of, (rows, width)) = (self.rows(&i), self.shape(t));
                    for row in 0..rows {
                        // SAFETY: as above; sums are written by nobody else.
                        let bytes = unsafe { std::slice::from_raw_parts_mut(row_of(row), width) };
                        bytes.copy_from_slice(&self.tiles[t][row][..width]);
                    }
                }
                Mnemonic::Tdpbf16ps => {
                    let [out, a, b] = [0, 1, 2].map(|n| tile(i.op_register(n)));
                    self.multiply(out, a, b);
                }
                other => panic!("{other:?} at {at:?} is not known"),
            }
            at = next as *const u8;
        }
        unreachable!("the loop ends with the routine")
    }
}

/// Whether the routines compute a product on a machine with `fault`.
fn right(fault: Fault, words: usize, fresh: bool) -> bool {
    let mut machine = Machine::new(fault);
    let right = computes(
        |tiles| {
            run_by(tiles, |routine, argument| {
                machine.call(routine, argument);
            });
        },
        words,
        fresh,
    );
    assert!(machine.shapes.is_none(), "the tiles are not released");
    right
}

#[test]
fn products_are_right() {
    for words in (1..=36).chain([48, 100, 127, 128]) {
        for fresh in [true, false] {
            assert!(right(Fault::None, words, fresh), "{words} words, fresh {fresh}");
        }
    }
}

#[test]
fn a_wrong_machine_is_found_out() {
    for fault in [Fault::Crosswise, Fault::NoStride] {
        for words in [5, 37, 128] {
            assert!(!right(fault, words, false), "{fault:?}, {words} words");
        }
    }
    // Nothing past the rows of a tile matters, and sums are loaded or cleared, not taken from a configuration.
    assert!(right(Fault::Stale, 37, true));
}
