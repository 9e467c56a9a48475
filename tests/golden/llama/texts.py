"""Five texts of some 200 tokens and more, of different kinds: what the real checkpoint is made to read."""

STORY = """\
The ferry left the island at six, as it had every evening since the bridge was lost, and Marta stood at the rail with the \
letter folded small in her glove. She had read it twice on the quay and once more in the queue, and each time the middle \
sentence had seemed to say something slightly different. Below her the water was flat and brown. A boy beside her counted \
gulls aloud, lost his place at nineteen, and began again without complaint. When the engine changed its note she looked up \
and saw that the lamp on the old customs house was burning, which was strange, because nobody had lived there for years. \
"Somebody has forgotten the time," said the ticket man, following her eyes. "Or somebody has come home." She did not answer. \
She unfolded the letter a fourth time, held it close to the window where the cabin light fell through, and read only the \
middle sentence, slowly, the way one reads a sentence in a language learned late. Then she laughed, so suddenly that the boy \
stopped counting, and she asked him kindly to go on from twenty.
"""

EXPLANATION = """\
A tide table is a small piece of applied astronomy. The Moon pulls a little harder on the side of the Earth that faces it \
than on the centre, and a little less hard on the far side, so the oceans are stretched along the line between the two \
bodies. As the Earth turns beneath this stretch, a harbour passes through two bulges in roughly 24 hours and 50 minutes. The \
extra 50 minutes come from the Moon itself, which moves forward along its orbit while the Earth is turning. The Sun does the \
same with about 46% of the strength. Twice a month the two agree, at new and at full moon, and the range between high and low \
water is largest; these are spring tides, which have nothing to do with the season. In between, at the quarters, they work \
against each other and the neap tides follow. The shape of the coast does the rest: a funnel such as the Bay of Fundy can \
raise the range above 15 metres, while in the middle of the Mediterranean it is hardly worth printing.
"""

CODE = """\
def longest_run(values: list[int]) -> tuple[int, int]:
    \"\"\"Return (start, length) of the longest run of equal values.\"\"\"
    best_start, best_length = 0, 0
    start = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[start]:
            length = i - start
            if length > best_length:
                best_start, best_length = start, length
            start = i
    return best_start, best_length


if __name__ == "__main__":
    print(longest_run([1, 1, 2, 2, 2, 3]))  # (2, 3)
    print(longest_run([]))                  # (0, 0)

# The function reads the list once, so it takes O(n) time and O(1) memory.
# A run ends where the value changes or where the list ends; both are
# handled by the same branch because `i` goes one step past the last index.
for name, data in {"empty": [], "one": [7], "all": [4, 4, 4]}.items():
    start, length = longest_run(data)
    assert 0 <= start <= len(data) and length <= len(data), name
"""

CHAT = """\
<|im_start|>system
You are a patient cook who answers in plain words.<|im_end|>
<|im_start|>user
My bread never rises properly in winter. The recipe is the same as in summer: 500 g flour, 320 g water, 10 g salt, 5 g dry \
yeast. What am I doing wrong?<|im_end|>
<|im_start|>assistant
Probably nothing except the temperature. Yeast works about half as fast when the kitchen is ten degrees colder, so a dough \
that needed an hour in July may need two or three in January. You have three choices: give it more time, use water at about \
30 °C instead of cold tap water, or let the dough rest in the oven with only the lamp switched on. Do not add more yeast; the \
bread would rise, but it would taste of it. Look at the dough and not at the clock: when it has doubled and a finger leaves a \
mark that fills slowly, it is ready.<|im_end|>
<|im_start|>user
Thank you! And if I want to bake early in the morning?<|im_end|>
<|im_start|>assistant
"""

MIXED = """\
Shopping list, 3 March 2024
1. Apples (2 kg) ............ 4,80 €
2. Café crème, Zürich style .. 6.50 CHF
3. 牛乳 1 本, お茶 2 袋 ........ ¥730
4. Крупа гречневая, 900 г .... 89 ₽

Notes: "Ça va?" asked Zoë; «Gut, danke!» answered Jörg. ¿Dónde está la estación? Η θάλασσα είναι ήρεμη σήμερα. मौसम अच्छा है। \
The e-mail address is not real: info@example.org, nor is +49 30 000000. Temperatures fell from −3 °C to −11 °C; 7 × 8 = 56, \
3/4 ≈ 0.75, and √2 is about 1.4142. 🙂🚲🌧️ Nobody forgot the umbrella this time, except Łukasz, who never carries one (he says \
that rain is only weather).

    | name  | metres | minutes |
    |-------|-------:|--------:|
    | Anna  |    800 |    3:41 |
    | Björn |   1500 |    7:02 |
    | 李明  |   3000 |   14:55 |
"""

TEXTS = {"story": STORY, "explanation": EXPLANATION, "code": CODE, "chat": CHAT, "mixed": MIXED}
