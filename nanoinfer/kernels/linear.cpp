// y = x W^T (+ bias): x [rows, in], y [rows, out]. W is packed once into groups of COLUMNS outputs, each a stream of
// [in / STEP][COLUMNS] words, so that a product of one row reads the weights from memory front to back.
#include "vectors.h"

template <class E>
static void linear(const typename E::T* x, const float* packed, const typename E::T* bias, typename E::T* y, long rows,
                   long in, long out) {
    long groups = (out + COLUMNS - 1) / COLUMNS, words = in / E::STEP * COLUMNS;
#pragma omp parallel for schedule(static)
    for (long group = 0; group < groups; group++) {
        long first = group * COLUMNS, width = out - first < COLUMNS ? out - first : COLUMNS;
        for (long row = 0, n; row < rows; row += n) {
            n = share(rows - row);
            Floats sums[ROWS][PANELS];
            tile<E>(n, x + row * in, in, packed + group * words, in, sums);
            for (int m = 0; m < n; m++) {
                typename E::T* to = y + (row + m) * out + first;
                if (width == COLUMNS && !bias) {
                    for (int p = 0; p < PANELS; p++) E::put(to + p * LANES, sums[m][p]);
                    continue;
                }
                for (int c = 0; c < width; c++)
                    to[c] = E::put1(((float*)sums[m])[c] + (bias ? E::get1(bias[first + c]) : 0.0f));
            }
        }
    }
}
