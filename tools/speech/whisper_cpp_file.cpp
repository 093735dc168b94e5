// Times whisper.cpp on a file, with as many tokens in each window as it is told: a part of ten_minutes.py.
//
//     whisper_cpp_file MODEL.bin SAMPLES.f32 THREADS TOKENS
//
// SAMPLES.f32: samples of one channel at 16 kHz, floats without a header. Greedy, no timestamps, no second try, no text before a window;
// the end of text never comes. Prints seconds, without loading. Built with whisper.cpp's libraries:
//
//     clang++ -O2 -I WHISPER/include -I WHISPER/ggml/include whisper_cpp_file.cpp \
//         BUILD/src/libwhisper.a BUILD/ggml/src/lib{ggml,ggml-cpu,ggml-base}.a -lpthread -ldl -o whisper_cpp_file
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "whisper.h"

static void no_end(whisper_context* context, whisper_state*, const whisper_token_data*, int, float* logits, void*) {
    logits[whisper_token_eot(context)] = -INFINITY;
}

int main(int count, char** arguments) {
    if (count != 5) return 2;
    std::ifstream file(arguments[2], std::ios::binary | std::ios::ate);
    std::vector<float> samples(file.tellg() / sizeof(float));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(samples.data()), samples.size() * sizeof(float));
    whisper_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    whisper_context_params model = whisper_context_default_params();
    model.use_gpu = false;
    whisper_context* context = whisper_init_from_file_with_params(arguments[1], model);
    if (!context || samples.empty()) return 1;
    whisper_full_params params = whisper_full_default_params(WHISPER_SAMPLING_GREEDY);
    params.n_threads = std::atoi(arguments[3]);
    // The token that reaches the bound is kept.
    params.max_tokens = std::atoi(arguments[4]) - 1;
    params.language = "en";
    params.no_context = params.no_timestamps = params.single_segment = true;
    params.print_progress = params.print_realtime = params.print_timestamps = false;
    params.temperature_inc = 0.0f;
    params.greedy.best_of = 1;
    params.logits_filter_callback = no_end;
    const auto start = std::chrono::steady_clock::now();
    if (whisper_full(context, params, samples.data(), samples.size()) != 0) return 1;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    int tokens = 0;
    const int segments = whisper_full_n_segments(context);
    for (int segment = 0; segment < segments; segment++) tokens += whisper_full_n_tokens(context, segment);
    std::printf("%.2f s, %d segments, %d tokens\n", took.count(), segments, tokens);
    whisper_free(context);
}
