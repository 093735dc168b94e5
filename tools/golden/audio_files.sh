#!/bin/sh
# One second of a sweep in every format that is read, and speech in Opus.
#
#     tools/golden/audio_files.sh crates/brasa-audio/tests/files
set -e
out=$1
sweep() { # RATE, then ffmpeg's options and the file
    rate=$1
    shift
    ffmpeg -hide_banner -loglevel error -y -f lavfi -bitexact \
        -i "aevalsrc=0.5*sin(2*PI*(200*t+1400*t*t))*min(1\,min(t\,1-t)/0.05):s=$rate:d=1" \
        -flags +bitexact -fflags +bitexact -map_metadata -1 "$@"
}
sweep 44100 -c:a libmp3lame -b:a 64k "$out/sweep.mp3"
sweep 44100 -af "pan=stereo|c0=c0|c1=c0" -c:a libmp3lame -q:a 6 "$out/sweep_stereo_vbr.mp3"
sweep 16000 -c:a flac -sample_fmt s16 "$out/sweep.flac"
sweep 44100 -c:a libvorbis -q:a 1 "$out/sweep.ogg"
sweep 44100 -c:a libvorbis -q:a 1 "$out/sweep.mkv"
sweep 44100 -c:a aac -b:a 64k "$out/sweep.m4a"
sweep 44100 -c:a aac -b:a 64k "$out/sweep.aac"
sweep 8000 -c:a alac -sample_fmt s16p "$out/sweep_alac.m4a"
sweep 8000 -c:a pcm_s16be "$out/sweep.aiff"
sweep 8000 -c:a pcm_s16be "$out/sweep.caf"
sweep 8000 -c:a adpcm_ms "$out/sweep_adpcm.wav"
# Speech, in whose packets all modes of Opus are, and what libopus decodes.
speech() { ffmpeg -v error -y -i "$(dirname "$0")/../../models/tiny-whisper/held-3.wav" -t 1.2 -ar 48000 "$@"; }
speech -c:a libopus -b:a 24k -application voip "$out/speech.opus"
speech -c:a libopus -b:a 24k -application voip "$out/speech.webm"
ffmpeg -v error -y -c:a libopus -i "$out/speech.opus" -sample_fmt s16 "$out/speech_libopus.flac"
