"""The tasks of `python -m benchmarks` and what each is about, known without importing what they need."""

TASKS = {
    "toy": "a curve with a gap: the distance of every method from full-batch HMC, two layers of tanh units",
    "uci": "nine UCI regressions, random splits, one hidden layer of 50 units",
    "uci-gap": "the same with the middle third of one feature held out: the test lies in a gap",
    "bandit": "contextual bandits by Thompson sampling: regret after 600 rounds",
    "fashion": "LeNet on 6,000 Fashion-MNIST images: scores in distribution, MNIST as unfamiliar",
    "ood": "telling Fashion-MNIST from MNIST, MNIST from letters and CIFAR-10 from clothes by several scores",
    "rotated-mnist": "LeNet on 6,000 MNIST images: NLL and ECE against the rotation of the test images",
    "corrupted-cifar": "a trained ResNet-20: NLL and ECE against the severity of three corruptions",
    "evidence-table": "evidence at the linear mode or at the weights, one precision or several, five kinds of network",
    "temperature": "cold posteriors of one hidden layer on 6,000 MNIST images, by width",
    "scaling": "the cost of a fit and of a prediction against weights and data, in forward passes",
}
