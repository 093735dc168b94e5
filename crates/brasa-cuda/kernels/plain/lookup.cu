// embed: y[r, D] = table[ids[r], D], a weight stored in any format. Without ids (null), y[r] = table[r].
// gather: y[i] = table[indices[i]], f32.
// select_rows: y[o, D] = x[rows[o], D], of any four-byte elements.
// Grid: one thread an element, blocks of 256. Numbers beyond their table are faults.
#include "formats.cuh"

KERNEL(embed, EmbedParams) {
    u64 i = thread_number();
    if (i >= (u64)p.rows * p.table.row_len) {
        return;
    }
    u32 r = (u32)(i / p.table.row_len), k = (u32)(i % p.table.row_len);
    u32 row = p.ids == nullptr ? r : checked(p.ids[r], p.table.rows, p.fault);
    const Part& part = part_of(p.table, row);
    p.y[i] = decode(part, row - part.first_row, k);
}

KERNEL(gather, GatherParams) {
    u64 i = thread_number();
    if (i < p.count) {
        p.y[i] = p.table[checked(p.indices[i], p.table_len, p.fault)];
    }
}

KERNEL(select_rows, SelectRowsParams) {
    u64 i = thread_number();
    if (i >= (u64)p.count * p.x.width) {
        return;
    }
    u32 row = checked(p.rows[i / p.x.width], p.x_rows, p.fault);
    p.y[i] = row_of(p.x, row)[i % p.x.width];
}
