// stray_write: writes a word wherever it is told to. An address that belongs to nothing loses the device, which is what tests want of it.
// Grid: one block.
#include "common.cuh"

KERNEL(stray_write, StrayParams) {
    if (threadIdx.x == 0) {
        write_anywhere(p.at);
    }
}
