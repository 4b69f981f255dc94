"""Sentences of a few words, spoken by espeak-ng: utterances(COUNT, SEED, HELD_OUT) gives pairs of samples and words.

Samples are f32 from -1 to 1, at RATE Hz. Voices are accents of English with variants of the speaker; the last of HELD are kept for
the test. Speed, pitch and the words are drawn.
"""
import concurrent.futures
import io
import random
import subprocess
import wave

import numpy as np
from scipy.signal import resample_poly

#: Samples per second, and most of an utterance: 5 seconds.
RATE, LONGEST = 8000, 40000
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
         "plus", "minus", "times", "equals", "point"]
ACCENTS = ["en-us", "en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029"]
SPEAKERS = ["", "f1", "f2", "f3", "f4", "f5", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "Alex", "Alicia", "Andrea", "Andy", "Annie",
            "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Jacky", "Lee", "Marco", "Michael", "adam", "anika", "antonio",
            "belinda", "benjamin", "boris", "david", "ed", "edward", "gustave", "iven", "john", "klatt", "klatt2", "linda", "max",
            "miguel", "norbert", "pablo", "paul", "pedro", "quincy", "rob", "robert", "sandro", "shelby", "steph", "travis", "zac"]
HELD = ["m8", "Mario", "caleb", "marcelo", "michel", "victor", "Gene2", "edward2", "steph2", "iven2"]


def speak(text, voice, speed, pitch):
    """Samples at RATE."""
    done = subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", text], check=True,
                          stdout=subprocess.PIPE)
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate, raw = file.getframerate(), file.readframes(1 << 24)
    found = resample_poly(np.frombuffer(raw, np.int16).astype(np.float32) / 32768, RATE, rate).astype(np.float32)
    loud = np.flatnonzero(np.abs(found) > 1e-3)
    return found[loud[0]:loud[-1] + 1]


def drawn(seed, held_out):
    own = random.Random(seed)
    while True:
        words = [own.choice(WORDS) for _ in range(own.randint(1, 8))]
        speaker = own.choice(HELD if held_out else SPEAKERS)
        voice = own.choice(ACCENTS) + (f"+{speaker}" if speaker else "")
        samples = speak(" ".join(words), voice, own.randint(110, 230), own.randint(25, 75))
        if len(samples) <= LONGEST:
            return samples, words


def utterances(count, seed, held_out=False):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(drawn, range(seed * 1_000_000, seed * 1_000_000 + count), [held_out] * count))
