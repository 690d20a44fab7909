"""Fuzzing of what the interposer reads: libFuzzer when there is clang, replay of the corpora always."""
