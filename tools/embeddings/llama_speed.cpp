// Times llama.cpp on a text encoder: llama_speed FILE.gguf TEXTS THREADS REPETITIONS BATCH
//
// TEXTS has a text a line, as token ids. As many texts as fit in BATCH tokens are computed together, longest first, each as a sequence of its own, as
// llama-embedding does. The best of all repetitions is printed.
//
//     c++ -O2 -I LLAMA/include -I LLAMA/ggml/include llama_speed.cpp -o llama_speed \
//         BUILD/src/libllama.a BUILD/ggml/src/libggml.a BUILD/ggml/src/libggml-cpu.a BUILD/ggml/src/libggml-base.a -lpthread -ldl -lm

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

int main(int argc, char ** argv) {
    if (argc != 6) {
        fprintf(stderr, "llama_speed FILE.gguf TEXTS THREADS REPETITIONS BATCH\n");
        return 2;
    }
    const int threads = atoi(argv[3]), repetitions = atoi(argv[4]), most = atoi(argv[5]);
    std::vector<std::vector<llama_token>> texts;
    size_t tokens = 0;
    std::ifstream file(argv[2]);
    for (std::string line; std::getline(file, line);) {
        std::istringstream ids(line);
        std::vector<llama_token> text;
        for (llama_token id; ids >> id;) text.push_back(id);
        tokens += text.size();
        texts.push_back(text);
    }
    std::stable_sort(texts.begin(), texts.end(), [](auto & a, auto & b) { return a.size() > b.size(); });

    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = most;
    params.n_seq_max = std::min<size_t>(256, llama_max_parallel_sequences());
    params.n_threads = params.n_threads_batch = threads;
    params.embeddings = true;
    params.kv_unified = true;
    llama_context * context = llama_init_from_model(model, params);
    if (!context) return 1;

    llama_batch batch = llama_batch_init(most, 0, 1);
    double best = 1e30, sum = 0;
    for (int repetition = 0; repetition <= repetitions; ++repetition) {
        const auto start = std::chrono::steady_clock::now();
        for (size_t first = 0; first < texts.size();) {
            batch.n_tokens = 0;
            int sequences = 0;
            for (; first < texts.size() && sequences < (int) params.n_seq_max; ++first, ++sequences) {
                if (batch.n_tokens + (int) texts[first].size() > most) break;
                for (size_t place = 0; place < texts[first].size(); ++place) {
                    const int row = batch.n_tokens++;
                    batch.token[row] = texts[first][place];
                    batch.pos[row] = place;
                    batch.n_seq_id[row] = 1;
                    batch.seq_id[row][0] = sequences;
                    batch.logits[row] = 1;
                }
            }
            if (sequences == 0 || llama_decode(context, batch) != 0) return 1;
            for (int sequence = 0; sequence < sequences; ++sequence) {
                const float * vector = llama_get_embeddings_seq(context, sequence);
                if (!vector) return 1;
                sum += vector[0];
            }
        }
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        if (repetition > 0) best = std::min(best, time.count());
    }
    printf("%zu texts, %zu tokens: %.0f tokens/s\n", texts.size(), tokens, tokens / best);
    return sum != sum;
}
